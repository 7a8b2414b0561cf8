package callercrash

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/sqlite"
)

// callsVariable is how many payments the caller makes.
const callsVariable = "ONCEWARD_TEST_CALLS"

// TestCallerIsKilled is the proof of durable operations: a caller pays through the demo, whose provider fails in all
// ways that it can, over a network that loses replies; caller and demo are killed at random and started again. In the
// end each order was charged once, and each answer was reported once.
func TestCallerIsKilled(t *testing.T) {
	payments, err := strconv.Atoi(cmp.Or(os.Getenv(callsVariable), nightly.Either("200", "60")))
	must(t, err)
	s := newStorm(t, payments)
	s.blow(func() bool { return s.counts().reported == payments })
	s.settle()
	made := s.counts()
	t.Logf("%d callers and %d demos were killed; %d operations were enqueued, %d answered, %d reported, %d of them more "+
		"than once; %d sendings, %d charges in the ledger of %d orders", s.callers, s.demos, made.orders, made.answered,
		made.reported, made.repeated, made.attempts, made.charges, made.charged)
	want := counts{orders: payments, answered: payments, reported: payments, charges: payments, charged: payments}
	made.attempts = 0
	if made != want {
		t.Errorf("in the end: %+v, want %+v", made, want)
	}
	s.wantSameAnswers()
}

// TestForgetfulCallerIsCaught shows that the storm has teeth: a caller that writes down what it sent after it has sent
// it pays twice.
func TestForgetfulCallerIsCaught(t *testing.T) {
	nightly.Only(t, "it shows that the storm of TestCallerIsKilled has teeth")
	s := newStorm(t, 100_000)
	s.settings.Forgetful = true
	s.blow(func() bool { return s.twice() > 0 })
}

// storm is a demo and a caller, which come and go.
type storm struct {
	*testing.T
	settings callerSettings
	dir      string
	addr     string
	ledger   string
	bank     string
	random   *rand.Rand

	caller, demo   *proc.Process
	callers, demos int
	kills          int // how many callers are killed at most
	own            *sqlite.Store
}

func newStorm(t *testing.T, payments int) *storm {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &storm{T: t, dir: t.TempDir(), random: rand.New(rand.NewPCG(seed, 1)), kills: max(6, payments/50)}
	s.settings = callerSettings{Store: filepath.Join(s.dir, "caller.db"), Payments: payments}
	s.addr = fmt.Sprint("127.0.0.1:", servers.FreePort(t))
	s.startDemo()
	s.startCaller()
	var err error
	s.own, err = sqlite.Open(t.Context(), s.settings.Store)
	must(t, err)
	t.Cleanup(func() { must(t, s.own.Close()) })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startDemo starts the demo where the last one was, and lets its provider fail.
func (s *storm) startDemo() {
	s.Helper()
	p, err := proc.Start(exec.Command(program, "demo", "--no-load", "--addr", s.addr, "--dir", filepath.Join(s.dir, "demo")))
	must(s, err)
	s.Cleanup(func() { must(s, p.Kill()) })
	s.demo = p
	for line := ""; !strings.Contains(line, "Ctrl-C"); {
		if line, err = p.Expect("", await.Limit); err != nil {
			s.Fatalf("the demo does not start: %v\n%s", err, p.Stderr())
		}
		if url, found := strings.CutPrefix(line, "Listening on "); found {
			s.settings.URL = url
		}
		if at, found := strings.CutPrefix(line, "Its payment provider is at "); found {
			s.bank, s.ledger, _ = strings.Cut(at, ", with its ledger in ")
		}
	}
	s.setFaults(provider.RandomFaults(s.random.Uint64(), 200*time.Millisecond, map[provider.Kind]float64{
		provider.TimeoutBefore: 0.02, provider.TimeoutAfter: 0.02, provider.ResetBefore: 0.02, provider.ResetAfter: 0.02,
		provider.ErrorBefore: 0.02, provider.ErrorAfter: 0.02, provider.Delay: 0.02, provider.WebhookDuplicate: 0.05,
		provider.WebhookDrop: 0.05,
	}))
}

// setFaults replaces the faults of the provider.
func (s *storm) setFaults(faults provider.Faults) {
	s.Helper()
	body, err := json.Marshal(faults)
	must(s, err)
	request, err := http.NewRequestWithContext(s.Context(), http.MethodPut, s.bank+"/faults", bytes.NewReader(body))
	must(s, err)
	response, err := http.DefaultClient.Do(request)
	must(s, err)
	must(s, response.Body.Close())
	if response.StatusCode != http.StatusNoContent {
		s.Fatalf("the provider takes no faults: %s", response.Status)
	}
}

func (s *storm) startCaller() {
	s.Helper()
	encoded, err := json.Marshal(s.settings)
	must(s, err)
	p, err := proc.Start(proc.Self(callerVariable, string(encoded)))
	must(s, err)
	s.Cleanup(func() { must(s, p.Kill()) })
	s.caller = p
	if _, err := p.Expect("working", await.Limit); err != nil {
		s.Fatalf("the caller does not start: %v\n%s", err, p.Stderr())
	}
}

// blow kills callers, and now and then a demo, until it is over, and some were killed. Callers that were killed often
// enough are left to finish.
func (s *storm) blow(over func() bool) {
	s.Helper()
	last, since := s.counts(), time.Now()
	for !over() || s.callers < 3 {
		if now := s.counts(); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > await.Limit {
			s.Fatalf("nothing has changed for %s after %d callers and %d demos: %+v", await.Limit, s.callers, s.demos, now)
		}
		time.Sleep(time.Duration(100+s.random.IntN(900)) * time.Millisecond) // the kill comes at random
		if s.caller.Ended() {
			s.Fatalf("a caller has ended by itself: %s", s.caller.Stderr())
		}
		if s.callers >= s.kills {
			continue
		}
		must(s, s.caller.Kill())
		s.callers++
		if s.random.IntN(6) == 0 {
			must(s, s.demo.Kill())
			s.demos++
			s.startDemo()
		}
		s.startCaller()
	}
}

// settle lets the demo charge in peace what it has taken.
func (s *storm) settle() {
	s.Helper()
	s.setFaults(provider.Faults{Rules: []provider.Rule{}})
	for n := s.counts().charged; n < s.settings.Payments; {
		before := n
		await.That(s, "the next order is charged", func() bool { n = s.counts().charged; return n > before })
	}
}

// counts are what there is in the end.
type counts struct {
	// orders are what the caller ordered, answered the operations with an answer, reported the answers of OnSettled.
	orders, answered, reported, repeated, attempts int
	// charges are those in the ledger, and charged the orders that have one.
	charges, charged int
}

func (s *storm) counts() (c counts) {
	s.Helper()
	for query, into := range map[string]*int{
		`SELECT count(*) FROM orders`:                                 &c.orders,
		`SELECT count(*) FROM onceward_messages WHERE state = 'done'`: &c.answered,
		`SELECT count(*) FROM report WHERE status = 201`:              &c.reported,
		`SELECT count(*) FROM report WHERE times > 1`:                 &c.repeated,
		`SELECT coalesce(sum(attempts), 0) FROM onceward_messages`:    &c.attempts,
	} {
		must(s, s.own.DB().QueryRowContext(s.Context(), query).Scan(into))
	}
	for _, n := range s.charges() {
		c.charges += n
		c.charged++
	}
	return c
}

// charges counts the charges of each order.
func (s *storm) charges() map[string]int {
	s.Helper()
	ledger, err := provider.ReadLedger(s.ledger)
	must(s, err)
	found := make(map[string]int)
	for _, entry := range ledger {
		if entry.Type == provider.EntryCharge {
			found[entry.Charge.Reference]++
		}
	}
	return found
}

// twice counts the orders that were charged more than once.
func (s *storm) twice() (n int) {
	for _, charges := range s.charges() {
		if charges > 1 {
			n++
		}
	}
	return n
}

// wantSameAnswers: the answer that was reported of an order is what the server answers now, byte for byte.
func (s *storm) wantSameAnswers() {
	s.Helper()
	rows, err := s.own.DB().QueryContext(s.Context(),
		`SELECT number, key, body FROM orders JOIN report USING (payment) ORDER BY random() LIMIT 50`)
	must(s, err)
	defer func() { must(s, rows.Close()) }()
	plain, err := client.NewClient(client.Config{})
	must(s, err)
	for rows.Next() {
		var number int
		var key, body string
		must(s, rows.Scan(&number, &key, &body))
		request, err := s.settings.payment(client.WithKey(s.Context(), key), number)
		must(s, err)
		must(s, authorize(request))
		response, err := plain.Do(request)
		must(s, err)
		var again bytes.Buffer
		_, err = again.ReadFrom(response.Body)
		must(s, err)
		must(s, response.Body.Close())
		if again.String() != body || response.Header.Get("Idempotent-Replayed") != "true" {
			s.Errorf("order %d was reported as %s, and is now answered %d %s", number, body, response.StatusCode, again.String())
		}
	}
	must(s, rows.Err())
}
