package stores_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
)

// shop is a guard over a store with a breaker around it, which can be opened.
type shop struct {
	*testing.T
	breaker *breaker.Store
	guard   *onceward.Guard
	fails   atomic.Bool
}

func newShop(t *testing.T, inside store.Store, config breaker.Config) *shop {
	t.Helper()
	x := &shop{T: t}
	config.Logger = quiet
	var err error
	x.breaker, err = breaker.New(wrap.New(inside, func(ctx context.Context, _ wrap.Call, next func(context.Context) error) error {
		if x.fails.Load() {
			return store.ErrUnavailable
		}
		return next(ctx)
	}), config)
	must(t, err)
	x.guard, err = onceward.New(x.breaker, onceward.Config{
		Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"), Logger: quiet,
		StoreTimeout: await.Limit, SettleTimeout: time.Hour, Defaults: []onceward.Option{onceward.Lease(time.Hour)},
	})
	must(t, err)
	return x
}

// slowCall is how long a call may take in the tests of slow handlers. A server answers a look-up within it, also on a
// machine that stands still for seconds.
const slowCall = 10 * time.Second

// timedBreaker is the reason why tests with slowCall are nightly.
const timedBreaker = "a call is slow after ten seconds; store/breaker tests the same in the time of synctest"

// open lets one call fail.
func (x *shop) open() {
	x.Helper()
	x.fails.Store(true)
	_, _ = x.breaker.Get(context.Background(), store.ID{Scope: "alice", Key: "none"})
	x.fails.Store(false)
	if state := x.breaker.State(); state != breaker.StateOpen {
		x.Errorf("the breaker is %s", state)
	}
}

func (x *shop) post(handle http.HandlerFunc, key, body string, mode onceward.Option) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	x.guard.HandlerFunc(handle, mode, onceward.OperationName("pay")).ServeHTTP(w, r)
	return w
}

var never = breaker.Config{ConsecutiveFailures: 1, SlowCall: await.Limit, OpenFor: time.Hour}

// TestHandlerWritesWhileOpen: the breaker opens while a handler talks to another system. What that did is written down
// all the same, and only new work is refused.
func TestHandlerWritesWhileOpen(t *testing.T) {
	t.Parallel()
	x := newShop(t, openFile(t), never)
	must(t, x.breaker.InTx(t.Context(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE refund (id TEXT PRIMARY KEY)`)
		return err
	}))
	note := func(ctx context.Context) error {
		return x.breaker.InTx(ctx, func(ctx context.Context) error {
			_, err := x.breaker.UpsertRow(ctx, onceward.Tx(ctx), natural.Upsert{
				Table: "refund", Key: []natural.Column{{Name: "id", Value: "re_1"}},
			})
			return err
		})
	}
	w := x.post(func(w http.ResponseWriter, r *http.Request) {
		x.open()
		if err := note(context.Background()); !errors.Is(err, store.ErrNotSent) {
			t.Errorf("L2: a transaction of no operation while the breaker is open: %v", err)
		}
		_, err := x.guard.Do(r.Context(), onceward.Call{Scope: "alice", Key: "inner", Operation: "pay"},
			func(context.Context) ([]byte, error) { return nil, nil }, onceward.Reserved(onceward.FailureRetry))
		if !errors.Is(err, store.ErrNotSent) {
			t.Errorf("L2: new work of an operation while the breaker is open: %v", err)
		}
		if err := note(r.Context()); err != nil {
			t.Errorf("L2: what was done could not be written down: %v", err)
			onceward.FromContext(r.Context()).Unknown()
			return
		}
		w.WriteHeader(http.StatusCreated)
	}, "k", `{}`, onceward.Reserved(onceward.FailureUnknown))
	if w.Code != http.StatusCreated {
		t.Errorf("L2: %d %s", w.Code, w.Body)
	}
}

// TestBeginningsWhileOpen: what begins new work, or goes through a lot, is refused to an operation that runs as well,
// such as one that has started a worker with its own context.
func TestBeginningsWhileOpen(t *testing.T) {
	t.Parallel()
	x := newShop(t, openFile(t), never)
	claim := store.Claim{ID: store.ID{Scope: "alice", Key: "lost"}, Attempt: 1}
	w := x.post(func(w http.ResponseWriter, r *http.Request) {
		x.open()
		ctx := r.Context()
		_, claims := x.breaker.ClaimMessages(ctx, []outbox.ClaimRequest{{Topic: "t", Limit: 1}}, time.Minute)
		_, sweeps := x.breaker.Sweep(ctx, 1)
		_, lists := x.breaker.List(ctx, store.Filter{})
		for name, err := range map[string]error{
			"claim messages": claims, "sweep": sweeps, "list": lists,
			"begin reconcile": x.breaker.BeginReconcile(ctx, claim, 0, time.Minute),
			"requeue":         x.breaker.Requeue(ctx, claim, "again"),
			"replay message":  x.breaker.ReplayMessage(ctx, "0190b5f2-7c3a-7def-8abc-0123456789ab", nil),
		} {
			if !errors.Is(err, store.ErrNotSent) {
				t.Errorf("L2: %s of an operation while the breaker is open: %v", name, err)
			}
		}
		if _, err := x.breaker.Get(ctx, claim.ID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("L2: an operation that runs cannot look: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}, "k", `{}`, onceward.Reserved(onceward.FailureUnknown))
	if w.Code != http.StatusCreated {
		t.Errorf("L2: %d %s", w.Code, w.Body)
	}
}

// TestRejectionWhileOpen: what an earlier attempt left behind goes with a request that is rejected, at once, so that
// the corrected one can have the key. A release that waited for the breaker would wait for an hour.
func TestRejectionWhileOpen(t *testing.T) {
	t.Parallel()
	x := newShop(t, openFile(t), never)
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	x.post(answer(http.StatusInternalServerError), "k", `{}`, onceward.Reserved(onceward.FailureRetry))
	var w *httptest.ResponseRecorder
	await.Return(t, "the answer to a rejected request", func() {
		w = x.post(func(w http.ResponseWriter, r *http.Request) {
			x.open()
			onceward.FromContext(r.Context()).Reject()
			w.WriteHeader(http.StatusUnprocessableEntity)
		}, "k", `{}`, onceward.Transactional())
	})
	if w.Code != http.StatusUnprocessableEntity {
		t.Errorf("E5: a rejected request is answered with %d", w.Code)
	}
	id := store.ID{Scope: "alice", Key: "k"}
	if rec, err := x.breaker.Unwrap().Get(t.Context(), id); err == nil && rec.State == store.StateRetryable {
		t.Errorf("E5: an earlier attempt at what was rejected is still %s", rec.State)
	}
}

// TestSlowHandlers: the transactions of one tenant that are slow keep others waiting, for the writer of SQLite or a
// connection of PostgreSQL, and that is all.
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	nightly.Only(t, timedBreaker)
	for name, test := range map[string]struct {
		open func(t *testing.T) store.Store
		busy int // handlers, with which nothing is left for others
	}{
		"SQLite": {func(t *testing.T) store.Store { return openFile(t) }, 1},
		"PostgreSQL": {func(t *testing.T) store.Store {
			return openPostgres(t, servers.Postgres(t).SchemaURL(t)+"&pool_max_conns=4")
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newShop(t, test.open(t), breaker.Config{SlowCall: slowCall})
			var slow, others sync.WaitGroup
			started, release := make(chan struct{}), make(chan struct{})
			for i := range test.busy {
				slow.Go(func() {
					x.post(func(w http.ResponseWriter, _ *http.Request) {
						started <- struct{}{}
						<-release
						w.WriteHeader(http.StatusCreated)
					}, fmt.Sprint("slow", i), `{}`, onceward.Transactional())
				})
				<-started
			}
			for i := range 8 {
				others.Go(func() {
					w := x.post(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
						fmt.Sprint("quick", i), `{}`, onceward.Transactional())
					if w.Code != http.StatusCreated {
						t.Errorf("L2: a request that waited for another was answered with %d %s", w.Code, w.Body)
					}
				})
			}
			time.Sleep(slowCall + time.Second) // so that each call that waits is judged
			if state := x.breaker.State(); state != breaker.StateClosed {
				t.Errorf("L2: the breaker is %s because handlers are slow", state)
			}
			close(release)
			others.Wait()
			slow.Wait()
		})
	}
}
