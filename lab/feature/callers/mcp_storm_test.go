package callers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// callsVariable says how many calls each storm makes; without it they are few enough for every run of the tests.
const callsVariable = "ONCEWARD_MCP_CALLS"

func calls(t *testing.T) int {
	t.Helper()
	text := os.Getenv(callsVariable)
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		t.Fatalf("%s is %q", callsVariable, text)
	}
	return n
}

// attempts is how often a call is made at most: so often that a server can start on any machine meanwhile.
const attempts = 10_000

// callers is how many calls are on their way at one time.
const callers = 8

// storm makes calls of a tool, each until it is answered, while servers die and replies are lost.
type storm struct {
	t      *testing.T
	dir    string
	lost   atomic.Int64 // replies, without a death
	killed atomic.Int64 // processes, from outside

	mu        sync.Mutex
	current   *os.Process
	untilKill int // answers
	killEach  int // answers, on average
}

// connectStdio starts a server in a process of its own, and connects to it.
func (s *storm) connectStdio(role string) func(context.Context) (*sdk.ClientSession, error) {
	return func(ctx context.Context) (*sdk.ClientSession, error) {
		command := proc.Self(roleVariable, role+":"+s.dir)
		session, err := connect(ctx, &sdk.CommandTransport{Command: command, TerminateDuration: await.Limit})
		if err == nil {
			s.serving(command.Process)
		}
		return session, err
	}
}

func connect(ctx context.Context, transport sdk.Transport) (*sdk.ClientSession, error) {
	return sdk.NewClient(&sdk.Implementation{Name: "storm"}, nil).Connect(ctx, transport, nil)
}

func (s *storm) serving(process *os.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = process
}

// answered counts an answer, and kills the server after a random number of them, while other calls are on their way.
func (s *storm) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.untilKill--; s.untilKill > 0 || s.current == nil {
		return
	}
	s.untilKill = 1 + rand.N(2*s.killEach)
	if s.current.Kill() == nil {
		s.killed.Add(1)
	}
	s.current = nil
}

// serveHTTP has a process serve on one address, and starts the next one when it has died, until the test ends.
func (s *storm) serveHTTP() (url string) {
	s.t.Helper()
	address := fmt.Sprint("127.0.0.1:", servers.FreePort(s.t))
	start := func() *proc.Process {
		process, err := proc.Start(proc.Self(roleVariable, "http:"+s.dir, address))
		if err != nil {
			s.t.Error(err)
			return nil
		}
		if _, err := process.Expect("listening", await.Limit); err != nil {
			s.t.Errorf("%v: %s", err, process.Stderr())
			return nil
		}
		return process
	}
	process := start()
	if process == nil {
		s.t.FailNow()
	}
	over, done := make(chan struct{}), make(chan struct{})
	s.t.Cleanup(func() {
		close(over)
		<-done
	})
	go func() {
		defer close(done)
		for {
			running, _ := os.FindProcess(process.PID())
			s.serving(running)
			select {
			case <-process.Done():
			case <-over:
				_ = process.Kill()
				return
			}
			if process = start(); process == nil {
				return
			}
		}
	}()
	return "http://" + address
}

// lossy loses replies: the server has answered, and the client does not see it.
type lossy struct{ lost *atomic.Int64 }

// RoundTrip implements [http.RoundTripper].
func (l lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || r.Method != http.MethodPost || rand.N(20) > 0 {
		return response, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	l.lost.Add(1)
	return nil, errors.New("the reply is lost")
}

// newCaller returns a caller that calls until it is answered.
func (s *storm) newCaller(open func(context.Context) (*sdk.ClientSession, error)) *oncewardmcp.Caller {
	s.t.Helper()
	caller, err := oncewardmcp.NewCaller(oncewardmcp.CallerConfig{
		Connect: open, MaxAttempts: attempts, MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		AttemptTimeout: await.Limit,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return caller
}

// run makes the calls from first on, and returns the keys whose outcome is unknown.
func (s *storm) run(first, n int, open func(context.Context) (*sdk.ClientSession, error)) (unknown []string) {
	s.t.Helper()
	caller := s.newCaller(open)
	var mu sync.Mutex
	var group sync.WaitGroup
	next := make(chan int)
	for range callers {
		group.Go(func() {
			for number := range next {
				key := fmt.Sprintf("call-%06d", number)
				if s.call(caller, key) {
					continue
				}
				mu.Lock()
				unknown = append(unknown, key)
				mu.Unlock()
			}
		})
	}
	for number := first; number < first+n && !s.t.Failed(); number++ {
		next <- number
	}
	close(next)
	group.Wait()
	_ = caller.Close()
	return unknown
}

// call makes one call until it is answered, and reports whether it was; if not, its outcome is unknown.
func (s *storm) call(caller *oncewardmcp.Caller, key string) bool {
	result, err := caller.CallTool(s.t.Context(), &sdk.CallToolParams{
		Name: "pay", Arguments: map[string]any{"to": key}, Meta: sdk.Meta{oncewardmcp.MetaKey: key},
	})
	if err != nil {
		s.t.Errorf("%s was not answered: %v", key, err)
		return true
	}
	s.answered()
	problem := oncewardmcp.ProblemOf(result)
	text, _ := result.Content[0].(*sdk.TextContent)
	switch {
	case problem != nil && problem.Code == "outcome-unknown":
		return false
	case result.IsError || text == nil || text.Text != "paid "+key:
		s.t.Errorf("%s was answered with %+v %+v", key, text, problem)
	}
	return true
}

// effects counts what was done for each key.
func (s *storm) effects() map[string]int {
	s.t.Helper()
	opened, err := sqlite.Open(s.t.Context(), filepath.Join(s.dir, ledgerFile))
	if err != nil {
		s.t.Fatal(err)
	}
	defer opened.Close()
	return countEffects(s.t, opened.DB())
}

func countEffects(t *testing.T, db *sql.DB) map[string]int {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT key, count(*) FROM ledger GROUP BY key")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	counts := make(map[string]int)
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			t.Fatal(err)
		}
		counts[key] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// wantOnce checks that each of n keys had its effect once.
func (s *storm) wantOnce(n int) {
	s.t.Helper()
	counts, sum := s.effects(), 0
	for key, count := range counts {
		if sum += count; count != 1 {
			s.t.Errorf("%s was done %d times", key, count)
		}
	}
	if len(counts) != n || sum != n {
		s.t.Errorf("%d effects for %d keys, want %d for %d", sum, len(counts), n, n)
	}
	s.t.Logf("%d calls, %d effects; %d servers killed at random, %d between the effect and its reply, %d replies lost",
		n, sum, s.killed.Load(), deaths(s.dir), s.lost.Load())
	if s.killed.Load() == 0 {
		s.t.Error("no server was killed: this has shown nothing")
	}
}

func newStorm(t *testing.T, n int) *storm {
	t.Helper()
	s := &storm{t: t, dir: t.TempDir(), killEach: min(max(n/8, 10), 100)}
	opened, err := openLedger(t.Context(), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestServerStorm: calls of a transactional tool, half over stdio and half over HTTP, are each done once, and each is
// answered.
func TestServerStorm(t *testing.T) {
	t.Parallel()
	n := calls(t)
	s := newStorm(t, n)
	unknown := s.run(0, n/2, s.connectStdio("stdio"))
	url := s.serveHTTP()
	unknown = append(unknown, s.run(n/2, n-n/2, func(ctx context.Context) (*sdk.ClientSession, error) {
		client := &http.Client{Transport: lossy{&s.lost}}
		return connect(ctx, &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: client, MaxRetries: -1})
	})...)
	if len(unknown) > 0 {
		t.Errorf("the outcomes of %d calls in transactions are unknown: %v", len(unknown), unknown)
	}
	s.wantOnce(n)
}

// TestProxyStorm: calls of a server that knows nothing of Onceward, through a proxy: nothing is done twice, what was
// answered was done, and of what is unknown an operator who looks into the ledger settles the rest.
func TestProxyStorm(t *testing.T) {
	t.Parallel()
	n := calls(t)
	s := newStorm(t, n)
	ended := s.watchPlain()
	unknown := s.run(0, n, s.connectStdio("proxy"))
	ended() // a plain server may still work although its proxy is dead
	counts := s.effects()
	for _, key := range unknown {
		if counts[key] > 1 {
			t.Errorf("%s is unknown, and was done %d times", key, counts[key])
		}
	}
	for number := range n {
		key := fmt.Sprintf("call-%06d", number)
		if counts[key] != 1 && !slices.Contains(unknown, key) {
			t.Errorf("%s was answered, and done %d times", key, counts[key])
		}
	}
	settled := s.settle(unknown, counts)
	t.Logf("%d outcomes were unknown: %d were done, %d not", len(unknown), settled, len(unknown)-settled)
	if len(unknown) == 0 {
		t.Error("no outcome was unknown: this has shown nothing")
	}
	caller := s.newCaller(s.connectStdio("proxy"))
	for _, key := range unknown {
		for attempt := 0; !s.call(caller, key); attempt++ {
			if attempt == 20 {
				t.Fatalf("%s was settled, and is unknown again and again", key)
			}
			_ = caller.Close()
			ended()
			s.settle([]string{key}, s.effects())
			caller = s.newCaller(s.connectStdio("proxy"))
		}
	}
	_ = caller.Close()
	ended()
	s.wantOnce(n)
}

// watchPlain lets the plain servers of the storm register, and returns a function that waits until all of them have
// ended, as an operator does before looking into the ledger. A plain server whose proxy is dead finishes its call and
// ends.
func (s *storm) watchPlain() (ended func()) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	address := []byte(listener.Addr().String())
	if err := os.WriteFile(filepath.Join(s.dir, registerFile), address, 0o600); err != nil {
		s.t.Fatal(err)
	}
	var alive atomic.Int64
	var registrations sync.WaitGroup
	registrations.Go(func() {
		for {
			server, err := listener.Accept()
			if err != nil {
				return
			}
			alive.Add(1)
			registrations.Go(func() {
				_, _ = io.Copy(io.Discard, server)
				_ = server.Close()
				alive.Add(-1)
			})
		}
	})
	s.t.Cleanup(func() {
		_ = listener.Close()
		registrations.Wait()
	})
	return func() {
		s.t.Helper()
		await.That(s.t, "no plain server is left", func() bool { return alive.Load() == 0 })
	}
}

// settle does what an operator does who looks into the ledger, and returns how many calls were done.
func (s *storm) settle(keys []string, counts map[string]int) (done int) {
	s.t.Helper()
	opened, err := sqlite.Open(s.t.Context(), filepath.Join(s.dir, proxyFile))
	if err != nil {
		s.t.Fatal(err)
	}
	defer opened.Close()
	for _, key := range keys {
		rec, err := opened.Get(s.t.Context(), store.ID{Scope: scope, Key: key})
		if err != nil {
			s.t.Fatal(err)
		}
		claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
		if counts[key] > 0 {
			done++
			err = opened.ResolveCompleted(s.t.Context(), claim, &store.Completion{
				Response: store.Response{Status: http.StatusOK, Body: []byte("paid " + key)},
			})
		} else {
			err = opened.ResolveNotExecuted(s.t.Context(), claim, "it is not in the ledger")
		}
		if err != nil {
			s.t.Fatalf("settle %s: %v", key, err)
		}
	}
	return done
}
