package tiered_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/tiered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

var errDown = errors.New("the front is down")

// faultyFront is a front in memory that can be down or hang, and whose fills can be held up on their way.
type faultyFront struct {
	*tiered.Memory
	gets, adds atomic.Int64

	mu sync.Mutex
	// down fails every call, slow lets it hang, and slowAdds fills alone.
	down, slow, slowAdds bool
	// holds makes fills wait in held for their release.
	holds bool
	held  []func()
}

func (f *faultyFront) set(change func(f *faultyFront)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// fault waits, or fails, as a server would.
func (f *faultyFront) fault(ctx context.Context) error {
	f.mu.Lock()
	down, slow := f.down, f.slow
	f.mu.Unlock()
	if slow {
		<-ctx.Done()
		return ctx.Err()
	}
	if down {
		return errDown
	}
	return nil
}

func (f *faultyFront) Get(ctx context.Context, id store.ID) ([]byte, error) {
	f.gets.Add(1)
	if err := f.fault(ctx); err != nil {
		return nil, err
	}
	return f.Memory.Get(ctx, id)
}

func (f *faultyFront) Add(ctx context.Context, id store.ID, value []byte, end time.Time) error {
	f.adds.Add(1)
	f.mu.Lock()
	holds, slow := f.holds, f.slowAdds
	if holds {
		f.held = append(f.held, func() { _ = f.Memory.Add(context.Background(), id, value, end) })
	}
	f.mu.Unlock()
	if holds {
		return nil
	}
	if slow {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := f.fault(ctx); err != nil {
		return err
	}
	return f.Memory.Add(ctx, id, value, end)
}

func (f *faultyFront) Invalidate(ctx context.Context, id store.ID, lasting time.Duration) error {
	if err := f.fault(ctx); err != nil {
		return err
	}
	return f.Memory.Invalidate(ctx, id, lasting)
}

// release lets the fills that were held up arrive.
func (f *faultyFront) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, arrive := range f.held {
		arrive()
	}
	f.held = nil
}

// countingStore counts the reservations that the durable store is asked for, and can be down.
type countingStore struct {
	*memory.Store
	asked atomic.Int64
	down  atomic.Bool
}

func (s *countingStore) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	s.asked.Add(1)
	if s.down.Load() {
		return store.Verdict{}, store.ErrUnavailable
	}
	return s.Store.Reserve(ctx, r)
}

// world is a tiered store in a bubble of synctest, where the durable store, the front and the node have one clock.
type world struct {
	*testing.T
	store   *tiered.Store
	durable *countingStore
	front   *faultyFront
	hits    atomic.Int64
	faults  atomic.Int64
	logged  logCounter
}

func newWorld(t *testing.T, config tiered.Config) *world {
	t.Helper()
	w := &world{
		T: t, durable: &countingStore{Store: memory.New()}, front: &faultyFront{Memory: tiered.NewMemory(tiered.MemoryConfig{})},
	}
	config.Logger = slog.New(&w.logged)
	config.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
		switch e := e.(type) {
		case tiered.LookedUpEvent:
			if e.Hit {
				w.hits.Add(1)
			}
		case tiered.FrontFailedEvent:
			w.faults.Add(1)
		}
	})
	var err error
	if w.store, err = tiered.New(w.durable, w.front, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.store.Close() })
	return w
}

// logCounter counts what is logged.
type logCounter struct{ atomic.Int64 }

func (l *logCounter) Enabled(context.Context, slog.Level) bool { return true }
func (l *logCounter) Handle(context.Context, slog.Record) error {
	l.Add(1)
	return nil
}
func (l *logCounter) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logCounter) WithGroup(string) slog.Handler      { return l }

var key = store.ID{Scope: "acme", Key: "key"}

// request is the one request that the tests send.
func request(id store.ID) *store.Reservation {
	r := &store.Reservation{
		ID: id, Operation: "POST /payments", Lease: time.Hour, Retention: 24 * time.Hour,
		Fingerprints: []store.Fingerprint{{Secret: 7, Rules: 1, Sum: sha256.Sum256([]byte("request"))}},
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

func (w *world) reserve(r *store.Reservation, want store.Decision) store.Verdict {
	w.Helper()
	v, err := w.store.Reserve(w.Context(), r)
	if err != nil || v.Decision != want {
		w.Fatalf("reserve got (%s, %v), want %s", v.Decision, err, want)
	}
	synctest.Wait() // until a fill has arrived
	return v
}

// execute makes a completed record.
func (w *world) execute(r *store.Reservation, body string) store.Claim {
	w.Helper()
	v := w.reserve(r, store.DecisionExecute)
	c := store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	done := &store.Completion{Response: store.Response{Status: 201, Body: []byte(body)}}
	if _, err := w.store.Complete(w.Context(), c, done); err != nil {
		w.Fatal(err)
	}
	return c
}

// replay wants an answer, from the front or not.
func (w *world) replay(body string, fromFront bool) store.Verdict {
	w.Helper()
	hits, asked := w.hits.Load(), w.durable.asked.Load()
	v := w.reserve(request(key), store.DecisionReplay)
	if got := string(v.Record.Response.Body); got != body {
		w.Fatalf("%q was replayed, want %q", got, body)
	}
	if hit := w.hits.Load() > hits; hit != fromFront || w.durable.asked.Load() > asked == hit {
		w.Fatalf("answered by the front: %t, want %t; the durable store was asked %d times", hit, fromFront,
			w.durable.asked.Load()-asked)
	}
	return v
}

// bubble runs a test in a bubble of synctest.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// quiet is for nodes whose words do not matter.
var quiet = slog.New(slog.DiscardHandler)
