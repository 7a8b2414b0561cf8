// Package telemetry_test holds tests of the telemetry of the reference payments system: what a real Prometheus that
// scrapes it shows, which alerts it fires, and the trace of one operation through all that can happen to it.
package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/examples/payments/monitor"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/storeurl"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// awaitSeen looks again and again until something is so, and logs what was seen last if it never is.
func awaitSeen(t testing.TB, what string, so func() (bool, string)) {
	t.Helper()
	seen := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seen last, before %s: %s", what, seen)
		}
	})
	await.That(t, what, func() (is bool) {
		is, seen = so()
		return is
	})
}

// scraped is a payments system on PostgreSQL as its clients see it, and the Prometheus that scrapes it.
type scraped struct {
	testing.TB
	url        string
	bank       string // the URL of the payment provider
	postgres   *servers.PostgresServer
	prometheus *servers.PrometheusServer
}

// scrape starts the Prometheus, with the alerts.
func (s *scraped) scrape() {
	s.Helper()
	s.prometheus = servers.NewPrometheus(s, fmt.Sprintf(`
global: {scrape_interval: 400ms, scrape_timeout: 400ms, evaluation_interval: 300ms}
rule_files: [%s]
scrape_configs:
  - job_name: payments
    static_configs: [{targets: ["%s"]}]
`, quickRules(s), strings.TrimPrefix(s.url, "http://")))
}

// setFaults has the provider fail by rules, or by none.
func (s *scraped) setFaults(rules ...provider.Rule) {
	s.Helper()
	method, body := http.MethodDelete, []byte(nil)
	if len(rules) > 0 {
		var err error
		method = http.MethodPut
		body, err = json.Marshal(provider.Faults{Rules: rules})
		must(s, err)
	}
	request, err := http.NewRequestWithContext(s.Context(), method, s.bank+"/faults", bytes.NewReader(body))
	must(s, err)
	response, err := client.Do(request)
	must(s, err)
	must(s, response.Body.Close())
	if response.StatusCode != http.StatusNoContent {
		s.Fatalf("the provider does not take the faults: %s", response.Status)
	}
}

// world is such a system in this process, behind a breaker, with a route that ends in whichever way the test wants.
type world struct {
	scraped
	db     *storeurl.Database
	system *payments.System
	guard  *onceward.Guard
	chores chores
}

// broken is a store behind a breaker, with what a program needs to close it.
type broken struct {
	*breaker.Store
	inside storeurl.Store
}

func (b broken) Unwrap() store.Store { return b.Store }
func (b broken) Close() error        { return b.inside.Close() }

// never is longer than any test: workers look once when they start, and the test has its own for what it counts.
const never = time.Hour

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		scraped: scraped{TB: t, postgres: servers.NewPostgres(t, "fsync=off")}, chores: chores{seen: make(map[string]int)},
	}
	var err error
	w.db, err = storeurl.Open(t.Context(), w.postgres.URL(), storeurl.WithLogger(quiet))
	must(t, err)
	t.Cleanup(func() { _ = w.db.Close() })
	around, err := breaker.New(w.db.Store, breaker.Config{
		ConsecutiveFailures: 3, OpenFor: await.Limit, SlowCall: await.Limit, Logger: quiet,
	})
	must(t, err)
	w.db.Store = broken{around, w.db.Store}
	bank, err := provider.Start(context.WithoutCancel(t.Context()), provider.Config{
		Dedup: true, LedgerPath: filepath.Join(t.TempDir(), "ledger"),
	})
	must(t, err)
	t.Cleanup(func() { must(t, bank.Close()) })
	watching, err := monitor.New(monitor.Config{Export: time.Second})
	must(t, err)
	w.system, err = payments.New(t.Context(), payments.Config{
		Database: w.db, Monitor: watching, Secret: []byte("a secret of the tests, long enough"), Provider: bank.URL,
		WebhookSecret: "the secret of the webhooks", Tokens: map[string]string{"alice": "alice", "bob": "bob"}, Logger: quiet,
		Timing: payments.Timing{
			Lease: await.Limit, Call: await.Limit, Store: await.Limit, Arrival: 100 * time.Millisecond, Look: never,
			Backoff: 20 * time.Millisecond,
		},
		Routes: func(mux *onceward.Mux, guard *onceward.Guard) {
			w.guard = guard
			mux.Handle(choresRoute, guard.HandlerFunc(w.chore, onceward.Reserved(onceward.FailureUnknown)))
		},
	})
	must(t, err)
	server := httptest.NewServer(w.system)
	t.Cleanup(server.Close)
	w.url, w.bank = server.URL, bank.URL
	w.work()
	w.scrape()
	return w
}

// work lets the system work in the background until the test ends.
func (w *world) work() {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() { done <- w.system.Work(ctx) }()
	w.Cleanup(func() {
		stop()
		must(w, <-done)
	})
}

// reply is an answer over HTTP.
type reply struct {
	status   int
	code     string // of a problem
	location string
	replayed bool
}

var client = &http.Client{Timeout: await.Limit, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

func (s *scraped) send(method, path, token, key, body string) reply {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	must(s, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := client.Do(request)
	must(s, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must(s, err)
	var problem struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(content, &problem) // most answers are none
	return reply{
		response.StatusCode, problem.Code, response.Header.Get("Location"),
		response.Header.Get("Idempotent-Replayed") != "",
	}
}

// expect sends a request that has to be answered with a status.
func (s *scraped) expect(status int, method, path, token, key, body string) reply {
	s.Helper()
	r := s.send(method, path, token, key, body)
	if r.status != status {
		s.Fatalf("%s %s with key %s: %d %s, want %d", method, path, key, r.status, r.code, status)
	}
	return r
}

func (s *scraped) pay(status int, token, key string, amount int) reply {
	s.Helper()
	return s.expect(status, http.MethodPost, "/payments", token, key,
		fmt.Sprintf(`{"customer":"c1","amount":%d,"currency":"EUR"}`, amount))
}

// choresRoute is a route that ends in whichever way the test wants.
const choresRoute = "POST /chores"

// chores is how often each key was executed, and what holds one.
type chores struct {
	mu   sync.Mutex
	seen map[string]int
	hold chan struct{}
}

func (w *world) do(status int, key, what string) {
	w.Helper()
	w.expect(status, http.MethodPost, "/chores", "alice", key, `"`+what+`"`)
}

func (w *world) chore(rw http.ResponseWriter, r *http.Request) {
	op := onceward.FromContext(r.Context())
	w.chores.mu.Lock()
	w.chores.seen[op.Key()]++
	first := w.chores.seen[op.Key()] == 1
	w.chores.mu.Unlock()
	var what string
	_ = json.NewDecoder(r.Body).Decode(&what) // the test's own
	switch {
	case what == "release" && first:
		op.NotExecuted()
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	case what == "unknown":
		op.Unknown()
		rw.WriteHeader(http.StatusInternalServerError)
		return
	case what == "bust":
		if err := w.db.Bust(r.Context(), store.ID{Scope: op.Scope(), Key: op.Key()}, true); err != nil {
			w.Error(err)
		}
	case what == "hold":
		<-w.chores.hold
	}
	rw.WriteHeader(http.StatusCreated)
}
