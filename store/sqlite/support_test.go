package sqlite_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// helperVariable makes the test binary play the part of another process instead of running tests.
const helperVariable = "ONCEWARD_SQLITE_TEST_HELPER"

// helpers are the parts that another process can play.
var helpers = map[string]func(path string) error{
	"contender": contend,
	"crasher":   runUntilKilled,
	"adder":     addAndHang,
	"look":      lookAt,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		if err := helpers[name](os.Args[1]); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	nightly.DrawLess("25")
	goleak.VerifyTestMain(watchdog.Settling(m))
}

// newFile is the path of a file that does not exist yet.
func newFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "onceward.db")
}

// openBusiness opens a store with a business table.
func openBusiness(t testing.TB, path string, options ...sqlite.Option) *sqlite.Store {
	t.Helper()
	store := openStore(t, path, options...)
	exec(t, store, `CREATE TABLE IF NOT EXISTS business (value TEXT NOT NULL)`)
	return store
}

func idOf(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

// reservation asks for a key with a nonce of its own. The payload is the same each time.
func reservation(key string, edits ...func(*store.Reservation)) *store.Reservation {
	r := &store.Reservation{
		ID: idOf(key), Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
		Lease:        time.Hour, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	for _, edit := range edits {
		edit(r)
	}
	return r
}

func leaseOf(d time.Duration) func(*store.Reservation) {
	return func(r *store.Reservation) { r.Lease = d }
}

type work = func(ctx context.Context, v store.Verdict) store.Settlement

// settled is the end of work with an answer.
func settled(end store.TxAction, body string) store.Settlement {
	return store.Settlement{
		Action:     end,
		Completion: store.Completion{Response: store.Response{Status: 201, Body: []byte(body)}},
	}
}

// insert writes a business row in the handler's transaction.
func insert(ctx context.Context, value string) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES (?)`, value)
	return err
}

// inserting is work that writes a row and commits, or is undone if it cannot.
func inserting(value string) work {
	return func(ctx context.Context, _ store.Verdict) store.Settlement {
		if insert(ctx, value) != nil {
			return settled(store.TxRollback, "")
		}
		return settled(store.TxCommit, value)
	}
}

// never is work that must not run.
func never(t testing.TB, rule string) work {
	return func(context.Context, store.Verdict) store.Settlement {
		t.Errorf("%s: the work was executed", rule)
		return settled(store.TxRollback, "")
	}
}

// transacted runs a transaction that has to be decided in the given way.
func transacted(t testing.TB, store *sqlite.Store, r *store.Reservation, w work, want store.Decision,
	rule string,
) store.Verdict {
	t.Helper()
	v, err := store.Transact(t.Context(), r, w)
	if err != nil || v.Decision != want {
		t.Fatalf("%s: transact of %q got (%s, %v), want %s", rule, r.Key, v.Decision, err, want)
	}
	return v
}

func wantRows(t testing.TB, store *sqlite.Store, value string, want int, rule string) {
	t.Helper()
	if got := count(t, store, value); got != want {
		t.Errorf("%s: %d rows %q, want %d", rule, got, value, want)
	}
}

func wantState(t testing.TB, s store.Store, key string, want store.State, rule string) {
	t.Helper()
	rec, err := s.Get(context.Background(), idOf(key))
	if err != nil && !errors.Is(err, store.ErrNotFound) || rec.State != want {
		t.Errorf("%s: the record of %q is %s (%v), want %s", rule, key, rec.State, err, want)
	}
}

func wantUnavailable(t testing.TB, err error, text, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) ||
		!strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want ErrUnavailable with %q", rule, err, text)
	}
}

// wantWorkRefused checks for an error by which nothing was executed, and which trying again does not mend.
func wantWorkRefused(t testing.TB, err error, text, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrWorkRefused) || errors.Is(err, store.ErrUnavailable) ||
		!strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want ErrWorkRefused with %q", rule, err, text)
	}
}

// newGuard is a guard over a store.
func newGuard(t testing.TB, store store.Store, edits ...func(*onceward.Config)) *onceward.Guard {
	t.Helper()
	config := onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"),
		Logger: slog.New(slog.DiscardHandler), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	}
	for _, edit := range edits {
		edit(&config)
	}
	guard, err := onceward.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

// counted is a handler that knows how often it ran, and answers 201 with that number if it has no function of its own.
type counted struct {
	runs atomic.Int64
	then func(w http.ResponseWriter, r *http.Request, run int64)
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.then(w, r, c.runs.Add(1))
}

func (c *counted) wantRuns(t testing.TB, want int64, rule string) {
	t.Helper()
	if got := c.runs.Load(); got != want {
		t.Errorf("%s: the handler ran %d times, want %d", rule, got, want)
	}
}

// paying is a handler that writes a row and answers 201.
func paying() *counted {
	return &counted{then: func(w http.ResponseWriter, r *http.Request, _ int64) {
		if err := insert(r.Context(), "payment"); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":1}`)
	}}
}

// answer is what a client sees.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a answer) want(t testing.TB, status int, replayed bool, rule string) {
	t.Helper()
	if a.status != status || a.replayed() != replayed {
		t.Errorf("%s: got %d, replayed %t, body %q; want %d, replayed %t", rule, a.status, a.replayed(), a.body,
			status, replayed)
	}
}

// wantProblem checks Onceward's own answer.
func (a answer) wantProblem(t testing.TB, status int, code, rule string) {
	t.Helper()
	var p onceward.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != status || p.Code != code {
		t.Errorf("%s: got %d %q, want %d %s", rule, a.status, a.body, status, code)
	}
	if p.Retryable && status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "" {
		t.Errorf("%s: a 503 without Retry-After", rule)
	}
}

func newRequest(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Pattern = "POST /payments" // as a router sets it
	r.Header.Set("Idempotency-Key", key)
	return r
}

// post sends a request to a handler in this process.
func post(h http.Handler, key string) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, newRequest(key))
	return answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
}

// overdue starts work that is to outlast its time, and waits until the work hangs. On a machine that stands still the
// time may be over before that: then it gets more.
func overdue(t *testing.T, start func(bound time.Duration) (entered <-chan struct{}, ended <-chan error)) <-chan error {
	t.Helper()
	for bound := short; ; bound *= 4 {
		entered, ended := start(bound)
		select {
		case <-entered:
			return ended
		case err := <-ended:
			if bound > await.Limit {
				t.Fatalf("with %s of time the work did not begin: %v", bound, err)
			}
		}
	}
}

// testClock stands still until it is moved.
type testClock struct{ moved atomic.Int64 }

func (c *testClock) now() time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(c.moved.Load()))
}

func (c *testClock) advance(d time.Duration) { c.moved.Add(int64(d)) }
