package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The demo is tested as a user runs it: as a process of its own, over HTTP, and killed where it hurts. The test binary is
// that process when it is told so.
const runAsDemo = "ONCEWARD_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runAsDemo) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// server is a demo that runs in a process of its own.
type server struct {
	url     string
	greeted string
	process *exec.Cmd
	killed  sync.Once
}

// startDemo starts a demo and waits until it says where it listens.
func startDemo(t *testing.T, args ...string) *server {
	t.Helper()
	command := exec.Command(os.Args[0], append([]string{"demo", "--addr", "127.0.0.1:0"}, args...)...)
	command.Env = append(os.Environ(), runAsDemo+"=1", "TMPDIR="+t.TempDir())
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{process: command}
	t.Cleanup(s.kill)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.greeted += lines.Text() + "\n"
		if url, found := strings.CutPrefix(lines.Text(), "Listening on "); found {
			s.url = url
		}
		if strings.Contains(lines.Text(), "Ctrl-C") {
			return s
		}
	}
	t.Fatalf("the demo ended before it listened: %v", lines.Err())
	return nil
}

// kill ends the process as a power cut would.
func (s *server) kill() {
	s.killed.Do(func() {
		_ = s.process.Process.Kill() // it may have ended by itself
		_ = s.process.Wait()
	})
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// newClient opens a connection for each request, so that the transport repeats none by itself.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
}

func (s *server) send(method, path, token, key, body string) reply {
	request, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := newClient().Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return reply{status: response.StatusCode, header: response.Header, body: string(content), err: err}
}

func (s *server) pay(key, body string) reply { return s.send("POST", "/payments", "alice", key, body) }

// must sends a request that has to be answered.
func (s *server) must(t *testing.T, method, path, token, key, body string) reply {
	t.Helper()
	r := s.send(method, path, token, key, body)
	if r.err != nil {
		t.Fatalf("%s %s: %v", method, path, r.err)
	}
	return r
}

// payments counts the caller's payments.
func (s *server) payments(t *testing.T, token string) int {
	t.Helper()
	var list []json.RawMessage
	r := s.must(t, "GET", "/payments", token, "", "")
	if err := json.Unmarshal([]byte(r.body), &list); err != nil {
		t.Fatalf("GET /payments: %v: %s", err, r.body)
	}
	return len(list)
}

// slowExecutions counts the executions of the slow route.
func (s *server) slowExecutions(t *testing.T) int {
	t.Helper()
	var counted struct{ Executions int }
	r := s.must(t, "GET", "/slow", "alice", "", "")
	if err := json.Unmarshal([]byte(r.body), &counted); err != nil {
		t.Fatalf("GET /slow: %v: %s", err, r.body)
	}
	return counted.Executions
}

const payment = `{"customer":"c1","amount":1999,"currency":"EUR"}`

// TestThreeCurlLines is the first five minutes of a user: what the demo prints is what happens.
func TestThreeCurlLines(t *testing.T) {
	t.Parallel()
	s := startDemo(t, "--no-load")
	if n := strings.Count(s.greeted, "curl -i "+s.url+"/payments"); n != 3 {
		t.Fatalf("the demo printed %d curl lines to try, want 3:\n%s", n, s.greeted)
	}
	first := s.must(t, "POST", "/payments", "alice", "k1", payment)
	again := s.must(t, "POST", "/payments", "alice", "k1", payment)
	changed := s.must(t, "POST", "/payments", "alice", "k1", strings.Replace(payment, "1999", "2999", 1))
	if first.status != 201 || first.header.Get("Location") == "" || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("first: %d %v", first.status, first.header)
	}
	if again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" ||
		again.header.Get("Location") != first.header.Get("Location") {
		t.Errorf("retry: %d %v %s, want the first answer again: %s", again.status, again.header, again.body, first.body)
	}
	if changed.status != 422 {
		t.Errorf("changed body: %d, want 422", changed.status)
	}
	if n := s.payments(t, "alice"); n != 1 {
		t.Errorf("%d payments were made, want 1", n)
	}
	if shown := s.must(t, "GET", first.header.Get("Location"), "alice", "", ""); shown.body != first.body {
		t.Errorf("GET %s: %s, want %s", first.header.Get("Location"), shown.body, first.body)
	}
}

func TestScopesAndTokens(t *testing.T) {
	t.Parallel()
	s := startDemo(t, "--in-flight", "accepted")
	alice := s.must(t, "POST", "/payments", "alice", "same", payment)
	bob := s.must(t, "POST", "/payments", "bob", "same", payment)
	if alice.status != 201 || bob.status != 201 || alice.body == bob.body {
		t.Errorf("the same key of two accounts: %d and %d, want two payments", alice.status, bob.status)
	}
	for _, token := range []string{"", "mallory", "Alice"} {
		for _, path := range []string{"/payments", "/slow"} {
			if r := s.must(t, "GET", path, token, "", ""); r.status != 401 {
				t.Errorf("GET %s as %q: %d, want 401", path, token, r.status)
			}
		}
	}
	if r := s.must(t, "GET", "/operations/same", "alice", "", ""); r.status != 200 {
		t.Errorf("status of an own key: %d %s", r.status, r.body)
	}
	s.must(t, "POST", "/payments", "bob", "only-bobs", payment)
	foreign := s.must(t, "GET", "/operations/only-bobs", "alice", "", "")
	absent := s.must(t, "GET", "/operations/nobodys-k", "alice", "", "")
	if foreign.status != 404 || strings.ReplaceAll(foreign.body, "only-bobs", "") != strings.ReplaceAll(absent.body, "nobodys-k", "") {
		t.Errorf("a foreign key answers %d %s, an absent one %d %s", foreign.status, foreign.body, absent.status, absent.body)
	}
}

func TestBadPayments(t *testing.T) {
	t.Parallel()
	s := startDemo(t)
	for i, body := range []string{``, `{`, `{"customer":"","amount":1,"currency":"EUR"}`, `{"customer":"c","amount":0,"currency":"EUR"}`, `{"customer":"c","amount":1,"currency":"Euro"}`} {
		r := s.must(t, "POST", "/payments", "alice", fmt.Sprintf("bad-%d", i), body)
		if r.status != 400 || !strings.Contains(r.body, "error") {
			t.Errorf("%s: %d %s, want 400 with what is wrong", body, r.status, r.body)
		}
	}
	if n := s.payments(t, "alice"); n != 0 {
		t.Errorf("%d payments were made", n)
	}
}

// duplicates sends one request many times at once.
func (s *server) duplicates(n int, path, key, body string) []reply {
	replies := make([]reply, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range replies {
		all.Go(func() {
			<-start
			replies[i] = s.send("POST", path, "alice", key, body)
		})
	}
	close(start)
	all.Wait()
	return replies
}

// TestTwoHundredAtOnce: one key, 200 goroutines, over HTTP, on both kinds of route, under each policy.
func TestTwoHundredAtOnce(t *testing.T) {
	t.Parallel()
	const many = 200
	for _, policy := range []string{"conflict", "wait", "accepted"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := startDemo(t, "--in-flight", policy)
			checkDuplicates(t, policy, 201, s.duplicates(many, "/payments", "key", payment))
			checkDuplicates(t, policy, 200, s.duplicates(many, "/slow?ms=300", "slow", ""))
			if n := s.payments(t, "alice"); n != 1 {
				t.Errorf("%d payments were made, want 1", n)
			}
			if n := s.slowExecutions(t); n != 1 {
				t.Errorf("%d slow executions, want 1", n)
			}
		})
	}
}

// checkDuplicates: exactly one reply is the execution's own; the others are replays of it, or what the policy says.
func checkDuplicates(t *testing.T, policy string, success int, replies []reply) {
	t.Helper()
	firsts, body := 0, ""
	for _, r := range replies {
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.status == success && r.header.Get("Idempotent-Replayed") == "" {
			firsts++
			body = r.body
		}
	}
	if firsts != 1 {
		t.Fatalf("%d replies claim to be the first, want 1", firsts)
	}
	for _, r := range replies {
		switch {
		case r.status == success && r.body == body:
		case r.status == 409 && policy == "conflict" && r.header.Get("Retry-After") != "":
		case r.status == 202 && policy == "accepted" && r.header.Get("Location") != "" && r.header.Get("Retry-After") != "":
		default:
			t.Errorf("a duplicate under %s got %d %v %s", policy, r.status, r.header, r.body)
		}
	}
}

// TestInterrupt: a demo that is asked to end does so cleanly.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	s := startDemo(t)
	if err := s.process.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.killed.Do(func() {
		if err := s.process.Wait(); err != nil {
			t.Errorf("the demo ended with %v", err)
		}
	})
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"demo", "--in-flight", "maybe"}, &out); err == nil || !strings.Contains(err.Error(), "conflict") {
		t.Errorf("an unknown policy gives %v, want an error that names the policies", err)
	}
	s := startDemo(t)
	err := run(t.Context(), []string{"demo", "--addr", strings.TrimPrefix(s.url, "http://"), "--dir", t.TempDir()}, &out)
	if err == nil || !strings.Contains(err.Error(), "--addr") {
		t.Errorf("an address in use gives %v, want an error that names --addr", err)
	}
}
