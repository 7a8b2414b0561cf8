package unknown_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// onStores runs a test on every kind of store: with transactions, embedded and not, and without.
func onStores(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		clock := new(leapingClock)
		test(t, newBench(t, memory.New(memory.WithClock(clock.now)), clock))
	})
	onTransactions(t, test)
}

// onTransactions is onStores for those whose transactions hold what steps write.
func onTransactions(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		store, clock := openPhases(t)
		test(t, newBench(t, store, clock))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		store, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		test(t, newBench(t, store, &leapingClock{server: postgres.NewTestClock(t, store)}))
	})
}

// openPhases opens a file, and returns the clock of its store.
func openPhases(t *testing.T) (*sqlite.Store, *leapingClock) {
	t.Helper()
	clock := new(leapingClock)
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "phase.db"), sqlite.WithClock(clock.now))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, clock
}

// leapingClock is the clock of a store, which a test moves to the end of a lease. So a lease can be longer than any
// machine stands still, and no test waits for its end.
type leapingClock struct {
	mu     sync.Mutex
	ahead  time.Duration
	server *postgres.TestClock // of a store whose clock is its server's
}

func (c *leapingClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// leapTo moves the clock past a time, if the time is still to come.
func (c *leapingClock) leapTo(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	leap := time.Until(at) - c.ahead + 10*time.Millisecond
	if leap <= 0 {
		return
	}
	c.ahead += leap
	if c.server != nil {
		c.server.Advance(leap)
	}
}

// bench is a store with a guard, and the trace of what steps did.
type bench struct {
	*testing.T
	store store.Store
	clock *leapingClock
	guard *onceward.Guard

	mu    sync.Mutex
	trace []string
}

func newBench(t *testing.T, store store.Store, clock *leapingClock) *bench {
	t.Helper()
	guard, err := onceward.New(store, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("sixteen bytes and some more"), StoreTimeout: await.Limit,
		Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, store: store, clock: clock, guard: guard}
}

// node is another program on the same store.
func (b *bench) node(t *testing.T) *bench { return newBench(t, b.store, b.clock) }

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

// ticket is the data of the operations under test.
type ticket struct {
	Item   string
	Seat   string
	Charge string
}

// errDown is what a system answers that is down for a moment.
var errDown = errors.New("down for a moment")

// quickly makes failed steps come again soon.
const quickly = 5 * time.Millisecond

// leased gives operations a lease that is longer than any machine stands still.
var leased = []onceward.Option{onceward.Lease(time.Hour)}

// define makes an operation of the steps, with attempts that come soon.
func (b *bench) define(steps ...phase.Step[ticket]) *phase.Operation[ticket] {
	b.Helper()
	o, err := phase.New(phase.Definition[ticket]{
		Name: "POST /orders", Steps: steps, MinBackoff: quickly, MaxAttempts: 4,
		Answer:  func(o *ticket) phase.Answer { return phase.JSON(http.StatusCreated, o) },
		Options: leased,
	})
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// start reads the data of a request.
func start(r *http.Request) (*ticket, error) {
	item, err := io.ReadAll(r.Body)
	return &ticket{Item: string(item)}, err
}

// post sends an order under a key.
func (b *bench) post(o *phase.Operation[ticket], key string) *httptest.ResponseRecorder {
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
func (b *bench) resume(o *phase.Operation[ticket]) phase.Report {
	b.Helper()
	resumer := b.resumer(phase.ResumerConfig{}, o)
	var sum phase.Report
	const rounds = 100 // more than any operation has attempts
	ctx := b.Context()
	for range rounds {
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
		b.leapTo(left[0].LeaseUntil)
	}
	b.Fatalf("resumed %d times, the operation is still in progress", rounds)
	return sum
}

// leapTo moves the clock past the end of a lease.
func (b *bench) leapTo(end time.Time) {
	b.Helper()
	b.clock.leapTo(end)
}

// local is a step that notes that it ran.
func (b *bench) local(name string, do func(ctx context.Context, o *ticket) error) phase.Step[ticket] {
	return phase.Local(name, func(ctx context.Context, o *ticket) error {
		b.did(name)
		return do(ctx, o)
	})
}

// call is an external step that notes that it ran.
func (b *bench) call(name string, do func(ctx context.Context, key string, o *ticket) error) phase.Step[ticket] {
	return phase.External(name, func(ctx context.Context, key string, o *ticket) error {
		b.did(name)
		return do(ctx, key, o)
	})
}

func takeSeat(_ context.Context, o *ticket) error {
	o.Seat = "12A"
	return nil
}

func charge(_ context.Context, _ string, o *ticket) error {
	o.Charge = "ch_1"
	return nil
}

func confirm(context.Context, *ticket) error { return nil }

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

// resumer makes one for an operation.
func (b *bench) resumer(config phase.ResumerConfig, operations ...phase.Resumable) *phase.Resumer {
	b.Helper()
	if config.Logger == nil {
		config.Logger = quiet
	}
	config.Operations = operations
	r, err := phase.NewResumer(b.guard, b.store, config)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// once runs a resumer once.
func (b *bench) once(r *phase.Resumer) phase.Report {
	b.Helper()
	report, err := r.RunOnce(b.Context())
	if err != nil {
		b.Error(err)
	}
	return report
}
