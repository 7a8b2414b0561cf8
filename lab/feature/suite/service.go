package suite

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// service is what one behaviour runs on: a store with a table of payments, a guard, and what that logged and told.
type service struct {
	*testing.T
	adapter Adapter
	store   *sqlite.Store
	guard   *onceward.Guard
	caller  Caller
	runs    atomic.Int64 // of the handler
	log     logBuffer

	mu     sync.Mutex
	events []onceward.ObserverEvent
	told   chan struct{} // there are more events
}

// logBuffer is a log that may be written by several requests.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newService(t *testing.T, adapter Adapter) *service {
	t.Helper()
	s := &service{T: t, adapter: adapter, told: make(chan struct{}, 1)}
	var err error
	s.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"))
	s.must(err)
	t.Cleanup(func() { _ = s.store.Close() })
	s.must(s.store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `CREATE TABLE payment (id TEXT PRIMARY KEY, account TEXT, amount BIGINT)`)
		return err
	}))
	return s
}

// setup is how a behaviour differs from the others.
type setup struct {
	work      Work                              // default: pay
	wrap      func(s *sqlite.Store) store.Store // default: the store as it is
	configure func(c *onceward.Config)          // default: nothing more
}

// serve starts the adapter's server with the default work.
func (s *service) serve(options ...onceward.Option) {
	s.Helper()
	s.serveWith(setup{}, options...)
}

// serveWork starts the adapter's server.
func (s *service) serveWork(work Work, options ...onceward.Option) {
	s.Helper()
	s.serveWith(setup{work: work}, options...)
}

func (s *service) serveWith(with setup, options ...onceward.Option) {
	s.Helper()
	s.makeGuard(with)
	work := with.work
	if work == nil {
		work = s.pay
	}
	s.caller = s.adapter.Serve(s.T, s.guard, func(ctx context.Context, p Payment) Reply {
		s.runs.Add(1)
		return work(ctx, p)
	}, options...)
}

// makeGuard makes the guard of a server.
func (s *service) makeGuard(with setup) {
	s.Helper()
	var used store.Store = s.store
	if with.wrap != nil {
		used = with.wrap(s.store)
	}
	config := onceward.Config{
		Scope: byToken, Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit,
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)), Observer: onceward.ObserverFunc(s.observe),
	}
	if s.adapter.Configure != nil {
		s.adapter.Configure(&config)
	}
	if with.configure != nil {
		with.configure(&config)
	}
	var err error
	s.guard, err = onceward.New(used, config)
	s.must(err)
}

// byToken takes the scope from the bearer token, as a service with authentication would.
func byToken(r *http.Request) (string, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", onceward.ErrUnauthenticated
	}
	return token, nil
}

// pay is a handler that makes the payment, in its transaction if it has one, and replies with what is new each time.
func (s *service) pay(ctx context.Context, p Payment) Reply {
	id := rand.Text()
	if err := s.write(ctx, id, p); err != nil {
		return Reply{Status: http.StatusInternalServerError, Body: err.Error()}
	}
	return Reply{Status: http.StatusCreated, Body: `{"id":"` + id + `"}`}
}

// write makes a payment in the transaction of the context. Where there is none, it makes none.
func (s *service) write(ctx context.Context, id string, p Payment) error {
	tx, ok := onceward.LookupTx(ctx)
	if !ok {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`, id, p.Account, p.Amount)
	return err
}

func (s *service) observe(_ context.Context, e onceward.ObserverEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	select {
	case s.told <- struct{}{}:
	default:
	}
}

// observed are the events of one kind.
func observed[T onceward.ObserverEvent](s *service) (found []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if event, ok := e.(T); ok {
			found = append(found, event)
		}
	}
	return found
}

func (s *service) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// seven is the payment of most requests.
var seven = Payment{Account: "a", Amount: 7}

// keyed is a request of the default tenant for the default payment.
func keyed(key string) Request { return Request{Key: key, Tenant: "alice", Payment: seven} }

// call sends a request that has to be answered.
func (s *service) call(r Request) Answer {
	s.Helper()
	a, err := s.caller.Call(s.Context(), r)
	if err != nil {
		s.Fatalf("%+v was not answered: %v", r, err)
	}
	return a
}

// send is a call in the background.
func (s *service) send(r Request) <-chan Answer {
	answers := make(chan Answer, 1)
	go func() {
		a, err := s.caller.Call(s.Context(), r)
		if err != nil {
			s.Errorf("%+v was not answered: %v", r, err)
		}
		answers <- a
	}()
	return answers
}

// want checks an answer of the handler.
func (s *service) want(what string, got Answer, status int, replayed bool) Answer {
	s.Helper()
	if got.Status != status || got.Code != "" || got.Replayed != replayed {
		s.Errorf("%s: got %+v, want %d, replayed %t", what, got, status, replayed)
	}
	return got
}

// wantSame checks a replay.
func (s *service) wantSame(what string, got, first Answer) {
	s.Helper()
	s.want(what, got, first.Status, true)
	if got.Body != first.Body {
		s.Errorf("%s: got %q, want the bytes of %q", what, got.Body, first.Body)
	}
}

// wantProblem checks an answer of Onceward's own.
func (s *service) wantProblem(what string, got Answer, status int, code string) Answer {
	s.Helper()
	if got.Status != status || got.Code != code || got.Replayed {
		s.Errorf("%s: got %+v, want %d %s", what, got, status, code)
	}
	return got
}

func (s *service) wantRuns(what string, want int64) {
	s.Helper()
	if got := s.runs.Load(); got != want {
		s.Errorf("%s: the handler ran %d times, want %d", what, got, want)
	}
}

// wantPayments checks how many were made.
func (s *service) wantPayments(what string, want int) {
	s.Helper()
	var got int
	s.must(s.store.DB().QueryRowContext(s.Context(), `SELECT count(*) FROM payment`).Scan(&got))
	if got != want {
		s.Errorf("%s: %d payments, want %d", what, got, want)
	}
}

// wantNothingStored checks that no record came into being.
func (s *service) wantNothingStored(what string) {
	s.Helper()
	records, err := s.store.List(s.Context(), store.Filter{})
	if err != nil || len(records) != 0 {
		s.Errorf("%s: %d records, error %v; want none", what, len(records), err)
	}
}

// wantQuiet checks that nothing about the wrapper was told.
func (s *service) wantQuiet() {
	s.Helper()
	var log strings.Builder
	for line := range strings.Lines(s.log.String()) {
		if !strings.Contains(line, "never asked for its transaction") { // the handler's choice, not the wrapper's
			log.WriteString(line)
		}
	}
	if log, told := log.String(), observed[onceward.BypassedEvent](s); log != "" || len(told) > 0 {
		s.Errorf("an adapter that does it right is told of: %+v %s", told, log)
	}
}
