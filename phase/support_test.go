package phase_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) { os.Exit(watchdog.Over(m).Run()) }

// bench is a store with a guard, and the trace of what steps did. Its leases are short: a test that waits for the end of
// one, or depends on one that has not ended, runs in synctest.
type bench struct {
	*testing.T
	store  store.Store
	config onceward.Config
	guard  *onceward.Guard

	mu    sync.Mutex
	trace []string
}

func newBench(t *testing.T, store store.Store) *bench {
	t.Helper()
	config := onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("sixteen bytes and some more"),
		Logger: slog.New(slog.DiscardHandler),
	}
	guard, err := onceward.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, store: store, config: config, guard: guard}
}

// reconfigure continues with a guard over the same store that is configured otherwise.
func (b *bench) reconfigure(change func(c *onceward.Config)) {
	b.Helper()
	change(&b.config)
	guard, err := onceward.New(b.store, b.config)
	if err != nil {
		b.Fatal(err)
	}
	b.guard = guard
}

// did notes that something happened.
func (b *bench) did(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trace = append(b.trace, what)
}

// wantTrace compares what happened with what was to happen.
func (b *bench) wantTrace(want string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := strings.Join(b.trace, " "); got != want {
		b.Errorf("the steps did %q, want %q", got, want)
	}
}

// order is the data of the operations under test.
type order struct {
	Item   string
	Seat   string
	Charge string
}

// errDown is what a system answers that is down for a moment.
var errDown = errors.New("down for a moment")

// quickly makes failed steps retry soon.
const quickly = 5 * time.Millisecond

// define makes an operation of the steps, with attempts that come soon.
func (b *bench) define(steps ...phase.Step[order]) *phase.Operation[order] {
	b.Helper()
	o, err := phase.New(phase.Definition[order]{
		Name: "POST /orders", Steps: steps, MinBackoff: quickly, MaxAttempts: 4,
		Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
		Options: []onceward.Option{onceward.Lease(2 * time.Second)},
	})
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// start reads the data of a request.
func start(r *http.Request) (*order, error) {
	item, err := io.ReadAll(r.Body)
	return &order{Item: string(item)}, err
}

// post sends an order under a key.
func (b *bench) post(o *phase.Operation[order], key string) *httptest.ResponseRecorder {
	b.Helper()
	return b.send(o.Handler(b.guard, start), key)
}

func (b *bench) send(h http.Handler, key string) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("a book"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// want checks an answer.
func (b *bench) want(w *httptest.ResponseRecorder, status int, body string) {
	b.Helper()
	if w.Code != status || !strings.Contains(w.Body.String(), body) {
		b.Errorf("the answer is %d %s, want %d with %s", w.Code, w.Body, status, body)
	}
}

// record returns the record of a key.
func (b *bench) record(key string) store.Record {
	b.Helper()
	rec, err := b.store.Get(b.Context(), store.ID{Scope: "shop", Key: key})
	if err != nil {
		b.Fatal(err)
	}
	return rec
}

// resume takes over what is lost until nothing is left that can be.
func (b *bench) resume(o *phase.Operation[order]) phase.Report {
	b.Helper()
	resumer := b.resumer(phase.ResumerConfig{}, o)
	var sum phase.Report
	ctx, began := b.Context(), time.Now()
	for time.Since(began) < await.Limit {
		report, err := resumer.RunOnce(ctx)
		if err != nil {
			b.Fatal(err)
		}
		sum.Finished += report.Finished
		sum.Unknown += report.Unknown
		sum.Skipped += report.Skipped
		left, err := b.store.(store.Lister).List(ctx, store.Filter{State: store.StateInProgress})
		if err != nil {
			b.Fatal(err)
		}
		if len(left) == 0 || report.Skipped > 0 {
			return sum
		}
		b.await(left[0].LeaseUntil)
	}
	b.Fatalf("after %s of resuming, the operation is still in progress", await.Limit)
	return sum
}

// await waits until a lease is over.
func (b *bench) await(until time.Time) {
	b.Helper()
	time.Sleep(time.Until(until) + time.Millisecond)
}

// local is a step that notes that it ran.
func (b *bench) local(name string, do func(ctx context.Context, o *order) error) phase.Step[order] {
	return phase.Local(name, func(ctx context.Context, o *order) error {
		b.did(name)
		return do(ctx, o)
	})
}

// call is an external step that notes that it ran.
func (b *bench) call(name string, do func(ctx context.Context, key string, o *order) error) phase.Step[order] {
	return phase.External(name, func(ctx context.Context, key string, o *order) error {
		b.did(name)
		return do(ctx, key, o)
	})
}

func takeSeat(_ context.Context, o *order) error {
	o.Seat = "12A"
	return nil
}

func charge(_ context.Context, _ string, o *order) error {
	o.Charge = "ch_1"
	return nil
}

func confirm(context.Context, *order) error { return nil }

// blindStore has nothing beyond the least.
type blindStore struct{ store.Store }

// listStore lets a test change what is listed.
type listStore struct {
	*memory.Store
	list func(found []store.Record) ([]store.Record, error)
}

// List implements [store.Lister].
func (s *listStore) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	found, err := s.Store.List(ctx, f)
	if err == nil && s.list != nil {
		return s.list(found)
	}
	return found, err
}

// lockedBuffer is a log that several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// downstreamSecret is what records of the bench's guard keep.
func (b *bench) downstreamSecret() uint32 {
	b.Helper()
	call := onceward.Call{Scope: "shop", Key: "for its secret", Operation: "nothing"}
	_, err := b.guard.Do(b.Context(), call, func(context.Context) ([]byte, error) { return nil, nil },
		onceward.Reserved(onceward.FailureUnknown))
	if err != nil {
		b.Fatal(err)
	}
	return b.record(call.Key).DownstreamSecret
}
