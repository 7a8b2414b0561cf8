package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about leases that are over while an owner still counts on them.

// slowGrant lets the reply to the first reservation take its time, after the store has granted it.
func slowGrant(s *faultyStore, d time.Duration, meanwhile func(store.Claim)) {
	var calls atomic.Int64
	s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		v, err := s.Store.Reserve(ctx, r)
		if calls.Add(1) == 1 {
			time.Sleep(d)
			meanwhile(store.Claim{ID: r.ID, Attempt: v.Record.Attempt})
		}
		return v, err
	}
}

func TestAGrantThatIsOlderThanItsLease(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*testing.T, *memory.Store, store.Claim){
		"it went unnoticed": func(*testing.T, *memory.Store, store.Claim) {},
		"swept, and resolved as not executed": func(t *testing.T, store *memory.Store, c store.Claim) {
			if n, err := store.Sweep(context.Background(), 10); n != 1 || err != nil {
				t.Errorf("B1: swept %d, %v; want the grant that was not taken", n, err)
			}
			if err := store.ResolveNotExecuted(context.Background(), c, "the provider has nothing"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, handler := newFaultyStore(), new(counted)
				slowGrant(s, 3*time.Second, func(c store.Claim) { meanwhile(t, s.Store, c) })
				h := newGuard(t, s).Handler(handler, reserved, onceward.Lease(2*time.Second))
				a := post(h, "k", `{}`)
				if p := a.wantProblem(t, "S5: the lease was over before the start", http.StatusServiceUnavailable,
					"store-unavailable"); !p.Retryable {
					t.Error("A1: nothing was executed, so the request may be sent again")
				}
				handler.wantRuns(t, "S5", 0)
				post(h, "k", `{}`).want(t, "S9: the grant was given back", http.StatusCreated, false)
				post(h, "k", `{}`).want(t, "S9", http.StatusCreated, true)
				handler.wantRuns(t, "S5", 1)
			})
		})
	}
}

func TestAnOldGrantDoesNotRunBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		slowGrant(s, 3*time.Second, func(store.Claim) {})
		h := newGuard(t, s).Handler(handler, reserved,
			onceward.Lease(time.Second), onceward.OnLost(store.LostResume))
		late := make(chan answer)
		go func() { late <- post(h, "k", `{}`) }()
		time.Sleep(2 * time.Second)
		successor := post(h, "k", `{}`)
		successor.want(t, "section 4: the policy resume", http.StatusCreated, false)
		(<-late).wantProblem(t, "S5", http.StatusServiceUnavailable, "store-unavailable")
		post(h, "k", `{}`).wantSame(t, "S6: the successor's answer stays", successor)
		handler.wantRuns(t, "S5: one of them runs", 1)
	})
}

func TestAFunctionWhoseGrantIsTooOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, w := newFaultyStore(), new(work)
		slowGrant(s, 3*time.Second, func(store.Claim) {})
		guard := newGuard(t, s)
		options := []onceward.Option{reserved, onceward.Lease(2 * time.Second)}
		if _, err := guard.Do(t.Context(), someCall, w.do, options...); !errors.Is(err, store.ErrUnavailable) ||
			!errors.Is(err, onceward.ErrLeaseLost) {
			t.Errorf("S5, E4: %v, want ErrUnavailable because of ErrLeaseLost", err)
		}
		w.wantRuns(t, "S5", 0)
		if _, err := guard.Do(t.Context(), someCall, w.do, options...); err != nil {
			t.Errorf("S9: the grant was not given back: %v", err)
		}
		w.wantRuns(t, "S5", 1)
	})
}

// TestAHandlerThatEndsItsGoroutine: runtime.Goexit, which t.FailNow calls too, unwinds without a panic.
func TestAHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHeartbeatStore()
		handler := &counted{then: func(http.ResponseWriter, *http.Request) { runtime.Goexit() }}
		h := newGuard(t, store).Handler(handler, reserved, onceward.Deadline(time.Hour))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			post(h, "k", `{}`)
		}()
		<-ended
		time.Sleep(31 * time.Second)
		if got := store.seen(); len(got) != 0 {
			t.Errorf("S5: heartbeats at %v for a handler that has ended", got)
		}
		post(h, "k", `{}`).wantProblem(t, "E8: no path leaves a key locked", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "E2", 1)
	})
}

func TestAFunctionThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeartbeatStore()
		w := &work{then: func(context.Context, *onceward.Operation) ([]byte, error) { runtime.Goexit(); return nil, nil }}
		guard := newGuard(t, s)
		options := []onceward.Option{reserved, onceward.Deadline(time.Hour)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			guard.Do(t.Context(), someCall, w.do, options...)
		}()
		<-ended
		time.Sleep(31 * time.Second)
		if _, err := guard.Do(t.Context(), someCall, w.do, options...); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("E8: no path leaves a key locked: %v, want ErrOutcomeUnknown", err)
		}
		w.wantRuns(t, "E2", 1)
	})
}

func TestAnObserverThatPanicsWhileSettling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler := newFaultyStore(), new(counted)
		store.complete = brokenComplete
		guard := newGuard(t, store, func(c *onceward.Config) {
			c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
				if _, ok := e.(onceward.StoreFailedEvent); ok {
					panic("the observer's panic")
				}
			})
		})
		h := guard.Handler(handler, reserved)
		post(h, "k", `{}`).wantProblem(t, "E7: the observer's panic changes nothing", http.StatusInternalServerError,
			"outcome-unknown")
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).wantProblem(t, "E8: no path leaves a key locked", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "E2", 1)
	})
}

func TestAPanicAfterALostLease(t *testing.T) {
	t.Parallel()
	for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeartbeatStore()
				s.fault = func(time.Duration) error { return errDown }
				handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					panic(context.Cause(r.Context()))
				}}
				h := newGuard(t, s).Handler(handler, onceward.Reserved(policy), onceward.Deadline(5*time.Minute))
				if got := panicOf(func() { post(h, "k", `{}`) }); got != onceward.ErrLeaseLost {
					t.Errorf("E8: the server's recovery gets %v, want the handler's panic", got)
				}
				wantState(t, "E2: a lost lease ends in unknown", s, "k", store.StateUnknown)
				handler.then = nil
				post(h, "k", `{}`).wantProblem(t, "E2", http.StatusConflict, "outcome-unknown")
				handler.wantRuns(t, "E2", 1)
			})
		})
	}
}

func TestAWaiterLearnsThatTheOwnerIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, started := newHeartbeatStore(), time.Now()
		store.fault = func(time.Duration) error { return errDown }
		goOn := make(chan struct{})
		handler := &counted{then: func(http.ResponseWriter, *http.Request) { <-goOn }} // it does not look at its context
		h := newGuard(t, store).Handler(handler, reserved, onceward.InFlightWait(5*time.Minute))
		owner := make(chan answer)
		go func() { owner <- post(h, "k", `{}`) }()
		time.Sleep(time.Second)
		post(h, "k", `{}`).wantProblem(t, "section 6: no owner will answer", http.StatusConflict, "outcome-unknown")
		if after := time.Since(started); after != 30*time.Second {
			t.Errorf("section 6: the waiter learned it after %s, want 30s, when the lease is over", after)
		}
		time.Sleep(time.Second) // the owner knows it, too
		close(goOn)
		(<-owner).wantProblem(t, "E2", http.StatusInternalServerError, "outcome-unknown")
		handler.wantRuns(t, "E2", 1)
	})
}

// TestAWaiterOutlastsALeaseThatIsKept: heartbeats make the lease that a waiter saw longer.
func TestAWaiterOutlastsALeaseThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := slow(95*time.Second, http.StatusCreated)
		h := newGuard(t, memory.New()).Handler(handler, reserved,
			onceward.InFlightWait(5*time.Minute), onceward.Deadline(5*time.Minute))
		if got := tally(crowd(5, h)); got[http.StatusCreated] != 5 {
			t.Errorf("section 6: the answers are %v, want 201 for all", got)
		}
		handler.wantRuns(t, "S1", 1)
	})
}

// This file is about a grant that comes a second time by its nonce, because the reply to the first was lost (scenario
// 38): its owner must not count its lease for longer than the store does.

// shortLease is one that a lost reply uses up for the most part: the guard gives a store 5 s to answer.
const shortLease = 6 * time.Second

// owners watches all attempts of one key, on all guards: at most one may take itself for the owner (I17).
type owners struct {
	mu  sync.Mutex
	all []*onceward.Operation
}

// work is an attempt that takes long and does not look at its lease.
func (o *owners) work(ctx context.Context) {
	o.mu.Lock()
	o.all = append(o.all, onceward.FromContext(ctx))
	o.mu.Unlock()
	time.Sleep(3 * shortLease)
}

func (o *owners) holding() (attempts []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.all {
		if op.CheckLease() == nil {
			attempts = append(attempts, op.Attempt())
		}
	}
	return attempts
}

// watch looks every few milliseconds, and returns how many attempts there were.
func (o *owners) watch(t *testing.T, d time.Duration) int {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holding := o.holding(); len(holding) > 1 {
			t.Errorf("S5: the attempts %d hold the lease of one key at the same time", holding)
			break
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// attempt is one way to ask for the operation of a key.
type attempt func(g *onceward.Guard, work func(ctx context.Context))

func byHandler(options ...onceward.Option) attempt {
	return func(g *onceward.Guard, work func(ctx context.Context)) {
		h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { work(r.Context()) })
		post(g.Handler(h, resumable(append(options, onceward.Lease(shortLease))...)...), "k", `{}`)
	}
}

func byFunction(g *onceward.Guard, work func(ctx context.Context)) {
	call := onceward.Call{Scope: "alice", Key: "k", Operation: "charge"}
	_, _ = g.Do(context.Background(), call, functionOf(work), resumable(onceward.Lease(shortLease))...)
}

func byResumer(store store.Store) attempt {
	return func(g *onceward.Guard, work func(ctx context.Context)) {
		if rec, err := store.Get(context.Background(), aliceID("k")); err == nil {
			_, _ = g.Resume(context.Background(), &rec, functionOf(work), resumable(onceward.Lease(shortLease))...)
		}
	}
}

func functionOf(work func(ctx context.Context)) func(ctx context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		work(ctx)
		return nil, nil
	}
}

// occupy leaves a record in progress, held by another owner for one lease.
func occupy(t *testing.T, s *memory.Store, try attempt) store.Claim {
	t.Helper()
	dead := newFaultyStore()
	dead.Store = s
	dead.release = func(context.Context, store.Claim, string) error { return errDown }
	dead.complete = func(context.Context, store.Claim, *store.Completion) (time.Time, error) {
		return time.Time{}, store.ErrInvalidEvent
	}
	dead.abandon = func(context.Context, store.Claim, string) error { return errDown }
	try(newGuard(t, dead), func(context.Context) {})
	rec := recordOf(t, s, "k")
	if rec.State != store.StateInProgress {
		t.Fatalf("the record is %s, want one in progress whose owner is gone", rec.State)
	}
	return store.Claim{ID: rec.ID, Attempt: rec.Attempt}
}

// losesAReply carries a reservation out and returns an error to its caller, later.
func losesAReply(s *faultyStore, after time.Duration) {
	lost := false
	s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		v, err := s.Store.Reserve(ctx, r)
		if lost || v.Decision != store.DecisionExecute {
			return v, err
		}
		lost = true
		time.Sleep(after)
		return store.Verdict{}, errDown
	}
}

// arrivesLate lets the first reservation arrive only when the key is free, long after its caller took it for lost,
// and loses what its caller sends next.
func arrivesLate(t *testing.T, s *faultyStore, free func()) {
	var sent, arrived, lost atomic.Bool
	s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
		switch {
		case sent.CompareAndSwap(false, true):
			late := *r
			time.AfterFunc(1010*time.Millisecond, func() {
				free()
				v, err := s.Store.Reserve(context.Background(), &late)
				if err != nil || v.Decision != store.DecisionExecute {
					t.Errorf("the late reservation got (%s, %v)", v.Decision, err)
				}
				arrived.Store(true)
			})
			return store.Verdict{}, errDown
		case arrived.Load() && lost.CompareAndSwap(false, true):
			time.Sleep(4 * time.Second)
			return store.Verdict{}, errDown
		default:
			return s.Store.Reserve(ctx, r)
		}
	}
}

func TestTwoAttemptsNeverHoldTheLeaseAtOnce(t *testing.T) {
	t.Parallel()
	const replyLostAfter = shortLease * 3 / 4
	for name, prepare := range map[string]func(t *testing.T, lossy *faultyStore) attempt{
		"a handler": func(_ *testing.T, lossy *faultyStore) attempt {
			losesAReply(lossy, replyLostAfter)
			return byHandler()
		},
		"a function": func(_ *testing.T, lossy *faultyStore) attempt {
			losesAReply(lossy, replyLostAfter)
			return byFunction
		},
		"a resumed operation": func(t *testing.T, lossy *faultyStore) attempt {
			occupy(t, lossy.Store, byFunction)
			time.Sleep(shortLease)
			losesAReply(lossy, replyLostAfter)
			return byResumer(lossy.Store)
		},
		"a duplicate that waited": func(t *testing.T, lossy *faultyStore) attempt {
			occupy(t, lossy.Store, byHandler())
			losesAReply(lossy, replyLostAfter)
			return byHandler(onceward.InFlightWait(time.Minute))
		},
		"a duplicate whose first reservation arrived late": func(t *testing.T, lossy *faultyStore) attempt {
			c := occupy(t, lossy.Store, byHandler())
			arrivesLate(t, lossy, func() {
				if err := lossy.Store.Release(context.Background(), c, "nothing was done"); err != nil {
					t.Error(err)
				}
			})
			return byHandler(onceward.InFlightWait(time.Minute))
		},
	} {
		for heartbeats, extend := range map[string]func(s *faultyStore) extends{
			"with heartbeats":       func(s *faultyStore) extends { return s.Store.Extend },
			"its heartbeats fail":   losesHeartbeats,
			"their replies go lost": losesReplies,
		} {
			t.Run(name+", "+heartbeats, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					lossy := newFaultyStore()
					try := prepare(t, lossy)
					lossy.extend = extend(lossy)
					compete(t, lossy, try)
				})
			})
		}
	}
}

// extends is what a store does with a heartbeat.
type extends func(ctx context.Context, c store.Claim, lease time.Duration) error

// losesHeartbeats and losesReplies are stores that heartbeats do not reach, or do not come back from.
func losesHeartbeats(*faultyStore) extends {
	return func(context.Context, store.Claim, time.Duration) error { return errDown }
}

func losesReplies(s *faultyStore) extends {
	return func(ctx context.Context, c store.Claim, lease time.Duration) error {
		_ = s.Store.Extend(ctx, c, lease)
		return errDown
	}
}

// withoutNotice is a store that does not notify: callers poll, and see a change late.
type withoutExternalEvent struct{ store.Store }

// compete has two guards try for one key, one of which loses replies of the store.
func compete(t *testing.T, lossy *faultyStore, try attempt) {
	t.Helper()
	o := new(owners)
	var done sync.WaitGroup
	done.Go(func() { try(newGuard(t, withoutExternalEvent{lossy}), o.work) })
	done.Go(func() {
		rival := newGuard(t, lossy.Store)
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			try(rival, o.work)
		}
	})
	if n := o.watch(t, 5*shortLease); n == 0 {
		t.Error("nothing was executed")
	}
	done.Wait()
}
