package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about leases that are over while somebody still counts on them.

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
		"nobody noticed": func(*testing.T, *memory.Store, store.Claim) {},
		"swept, and resolved as not executed": func(t *testing.T, store *memory.Store, c store.Claim) {
			if n, err := store.Sweep(context.Background(), 10); n != 1 || err != nil {
				t.Errorf("B1: swept %d, %v; want the grant that nobody took", n, err)
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
				h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(2*time.Second))
				a := post(h, "k", `{}`)
				if p := a.wantProblem(t, "S5: the lease was over before the start", http.StatusServiceUnavailable, "store-unavailable"); !p.Retryable {
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
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown),
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
		options := []onceward.Option{onceward.Reserved(onceward.FailureUnknown), onceward.Lease(2 * time.Second)}
		if _, err := guard.Do(t.Context(), someCall, w.do, options...); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, onceward.ErrLeaseLost) {
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
		h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.Deadline(time.Hour))
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
		options := []onceward.Option{onceward.Reserved(onceward.FailureUnknown), onceward.Deadline(time.Hour)}
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
		h := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown))
		if got := panicOf(func() { post(h, "k", `{}`) }); got != "the observer's panic" {
			t.Errorf("E8: the server's recovery gets %v, want the observer's panic", got)
		}
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
		h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.InFlightWait(5*time.Minute))
		owner := make(chan answer)
		go func() { owner <- post(h, "k", `{}`) }()
		time.Sleep(time.Second)
		post(h, "k", `{}`).wantProblem(t, "section 6: nobody will answer", http.StatusConflict, "outcome-unknown")
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
		h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown),
			onceward.InFlightWait(5*time.Minute), onceward.Deadline(5*time.Minute))
		if got := tally(crowd(5, h)); got[http.StatusCreated] != 5 {
			t.Errorf("section 6: the answers are %v, want 201 for all", got)
		}
		handler.wantRuns(t, "S1", 1)
	})
}
