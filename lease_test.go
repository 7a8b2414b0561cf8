package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// heartbeatStore records when heartbeats arrive, and answers them as fault requires.
type heartbeatStore struct {
	*memory.Store
	started time.Time
	fault   func(after time.Duration) error

	mu    sync.Mutex
	beats []time.Duration
}

func newHeartbeatStore() *heartbeatStore {
	return &heartbeatStore{Store: memory.New(), started: time.Now()}
}

func (s *heartbeatStore) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	after := time.Since(s.started)
	s.mu.Lock()
	s.beats = append(s.beats, after)
	s.mu.Unlock()
	if s.fault != nil {
		if err := s.fault(after); err != nil {
			return err
		}
	}
	return s.Store.Extend(ctx, c, lease)
}

func (s *heartbeatStore) seen() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.beats)
}

func seconds(n ...int) (times []time.Duration) {
	for _, s := range n {
		times = append(times, time.Duration(s)*time.Second)
	}
	return times
}

func TestHeartbeatsKeepALongHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHeartbeatStore()
		var h http.Handler
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(95 * time.Second)
			if err := onceward.FromContext(r.Context()).CheckLease(); err != nil {
				t.Errorf("S5: %v", err)
			}
			if err := r.Context().Err(); err != nil {
				t.Errorf("S5: the context ended: %v", err)
			}
			if n, err := store.Sweep(r.Context(), 10); n != 0 || err != nil {
				t.Errorf("S5: the sweeper took %d, %v", n, err)
			}
			post(h, "k", `{}`).wantProblem(t, "S5: still owned", http.StatusConflict, "in-progress")
			w.WriteHeader(http.StatusCreated)
		}}
		h = newGuard(t, store).Handler(handler, reserved, onceward.Deadline(5*time.Minute))
		post(h, "k", `{}`).want(t, "S5", http.StatusCreated, false)
		time.Sleep(5 * time.Minute)
		if got, want := store.seen(), seconds(10, 20, 30, 40, 50, 60, 70, 80, 90); !slices.Equal(got, want) {
			t.Errorf("S5: heartbeats of a lease of 30 s came at %v, want %v", got, want)
		}
		handler.wantRuns(t, "S5", 1)
	})
}

func TestAQuickHandlerNeedsNoHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler := newHeartbeatStore(), new(counted)
		h := newGuard(t, store).Handler(handler, reserved, onceward.Lease(3*time.Second))
		for i := range 20 {
			post(h, fmt.Sprint(i), `{}`)
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if got := store.seen(); len(got) != 0 {
			t.Errorf("S5: heartbeats at %v, want none", got)
		}
	})
}

func TestALostLeaseEndsTheContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault func(after time.Duration) error
		lost  time.Duration // when the handler's context ends
	}{
		"the store is down":      {func(after time.Duration) error { return failAfter(after, 15*time.Second, errDown) }, 40 * time.Second},
		"down from the start":    {func(time.Duration) error { return errDown }, 30 * time.Second},
		"the attempt was fenced": {func(after time.Duration) error { return failAfter(after, 15*time.Second, &store.FencedError{}) }, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, events := newHeartbeatStore(), new(journal)
				store.fault = test.fault
				handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					if after := time.Since(store.started); after != test.lost {
						t.Errorf("S5: the handler learned it after %s, want %s", after, test.lost)
					}
					if cause := context.Cause(r.Context()); !errors.Is(cause, onceward.ErrLeaseLost) {
						t.Errorf("S5: the cause is %v, want ErrLeaseLost", cause)
					}
					if err := onceward.FromContext(r.Context()).CheckLease(); !errors.Is(err, onceward.ErrLeaseLost) {
						t.Errorf("S5: CheckLease() = %v, want ErrLeaseLost", err)
					}
				}}
				guard := newGuard(t, store, observedBy(events))
				h := guard.Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.Deadline(5*time.Minute))
				post(h, "k", `{}`).
					wantProblem(t, "E2: a lost lease ends in unknown", http.StatusInternalServerError,
						"outcome-unknown")
				if lost := observed[onceward.LeaseLostEvent](events); len(lost) != 1 || lost[0].Key != "k" {
					t.Errorf("S5: lost leases observed: %+v, want one", lost)
				}
				post(h, "k", `{}`).wantProblem(t, "E2", http.StatusConflict, "outcome-unknown")
				handler.wantRuns(t, "E2", 1)
			})
		})
	}
}

// TestALeaseCountsFromItsHeartbeat: the store counts a lease from the moment at which the heartbeat reaches it, so that
// the owner must not count from the reply, which may take longer.
func TestALeaseCountsFromItsHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, beats := newFaultyStore(), 0
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			if beats++; beats > 1 {
				return errDown
			}
			err := s.Store.Extend(ctx, c, lease)
			time.Sleep(4 * time.Second) // the reply is on its way
			return err
		}
		handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if late := time.Since(recordOf(t, s.Store, "k").LeaseUntil); late != 0 {
				t.Errorf("S5: the owner stopped %s after the end of its lease, want 0s", late)
			}
		}}
		h := newGuard(t, s).Handler(handler, reserved, onceward.Deadline(5*time.Minute))
		post(h, "k", `{}`).wantProblem(t, "E2", http.StatusInternalServerError, "outcome-unknown")
		handler.wantRuns(t, "S5", 1)
	})
}

func TestALostLeaseInAFunction(t *testing.T) {
	t.Parallel()
	for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeartbeatStore()
				s.fault = func(time.Duration) error { return errDown }
				w := &work{then: func(ctx context.Context, _ *onceward.Operation) ([]byte, error) {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}}
				_, err := newGuard(t, s).Do(t.Context(), someCall, w.do, onceward.Reserved(policy))
				if !errors.Is(err, store.ErrOutcomeUnknown) || !errors.Is(err, onceward.ErrLeaseLost) {
					t.Errorf("E2: %v, want ErrOutcomeUnknown because of ErrLeaseLost", err)
				}
				if got := stateOfCall(t, s); got != store.StateUnknown {
					t.Errorf("E2: the record is %s, want unknown", got)
				}
			})
		})
	}
}

// TestAFailureAfterALostLease: the Failure of the route does not cover an owner that lost its lease.
func TestAFailureAfterALostLease(t *testing.T) {
	t.Parallel()
	for _, policy := range []onceward.Failure{onceward.FailureRetry, onceward.FailureStore, onceward.FailureUnknown} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newHeartbeatStore()
				store.fault = func(time.Duration) error { return errDown }
				handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					w.WriteHeader(http.StatusInternalServerError)
				}}
				h := newGuard(t, store).Handler(handler, onceward.Reserved(policy))
				post(h, "k", `{}`)
				post(h, "k", `{}`).
					wantProblem(t, "E2: a lost lease ends in unknown", http.StatusConflict, "outcome-unknown")
				handler.wantRuns(t, "E2", 1)
			})
		})
	}
}

func failAfter(after, from time.Duration, err error) error {
	if after >= from {
		return err
	}
	return nil
}

func TestHeartbeatsThatFailAndRecover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, events := newHeartbeatStore(), new(journal)
		store.fault = func(after time.Duration) error {
			if after >= 10*time.Second && after < 26*time.Second {
				return errDown
			}
			return nil
		}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				t.Errorf("S5: the lease was lost: %v", context.Cause(r.Context()))
			case <-time.After(58 * time.Second):
			}
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, store, observedBy(events)).Handler(handler, reserved)
		post(h, "k", `{}`).want(t, "S5", http.StatusCreated, false)
		if lost := observed[onceward.LeaseLostEvent](events); len(lost) != 0 {
			t.Errorf("S5: lost leases: %+v, want none", lost)
		}
		failed := observed[onceward.StoreFailedEvent](events)
		if len(failed) == 0 || failed[0].Call != "extend" {
			t.Errorf("M1: the failed heartbeats were reported as %+v", failed)
		}
	})
}

func TestAHeartbeatThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		calls := 0
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			if calls++; calls == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return s.Store.Extend(ctx, c, lease)
		}
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(50 * time.Second)
			if err := r.Context().Err(); err != nil {
				t.Errorf("S5: one heartbeat that hung cost the lease: %v", context.Cause(r.Context()))
			}
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, s, func(c *onceward.Config) { c.StoreTimeout = 0 }).Handler(handler, reserved) // the default
		post(h, "k", `{}`).want(t, "S5", http.StatusCreated, false)
	})
}

func TestHeartbeatsEndWithTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeartbeatStore()
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(45 * time.Second) // it does not look at its context
			if cause := context.Cause(r.Context()); cause != store.ErrDeadline {
				t.Errorf("E6: the cause is %v, want ErrDeadline", cause)
			}
			if n, err := s.Sweep(context.Background(), 10); n != 0 || err != nil {
				t.Errorf("S5: swept %d, %v, before the lease was over", n, err)
			}
			time.Sleep(10 * time.Second)
			if n, err := s.Sweep(context.Background(), 10); n != 1 || err != nil {
				t.Errorf("S5: swept %d, %v; want the handler that hangs", n, err)
			}
			if err := onceward.FromContext(r.Context()).CheckLease(); !errors.Is(err, onceward.ErrLeaseLost) {
				t.Errorf("S5: CheckLease() = %v, want ErrLeaseLost", err)
			}
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, s).Handler(handler, reserved, onceward.Deadline(25*time.Second))
		post(h, "k", `{}`).want(t, "section 4: it knows the answer, if late", http.StatusCreated, false)
		if got, want := s.seen(), seconds(10, 20); !slices.Equal(got, want) {
			t.Errorf("S5: heartbeats came at %v, want %v, none after the deadline of 25 s", got, want)
		}
		post(h, "k", `{}`).want(t, "section 4", http.StatusCreated, true)
		handler.wantRuns(t, "section 4", 1)
	})
}

func TestHeartbeatsGoOnWhileSettling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		started := time.Now()
		extended := 0
		s.extend = func(ctx context.Context, c store.Claim, lease time.Duration) error {
			extended++
			return s.Store.Extend(ctx, c, lease)
		}
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			if time.Since(started) < 10*time.Second {
				return time.Time{}, errDown
			}
			if n, err := s.Sweep(ctx, 10); n != 0 || err != nil {
				t.Errorf("S5: swept %d, %v, while the owner was settling", n, err)
			}
			return s.Store.Complete(ctx, c, done)
		}
		h := newGuard(t, s).Handler(handler, reserved,
			onceward.Lease(3*time.Second), onceward.Deadline(time.Second))
		post(h, "k", `{}`).want(t, "E7", http.StatusCreated, false)
		if extended < 8 {
			t.Errorf("S5: %d heartbeats in 10 s with a lease of 3 s, want about 10", extended)
		}
		handler.wantRuns(t, "E7", 1)
	})
}

func TestManyLeasesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHeartbeatStore()
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			d, err := time.ParseDuration(r.URL.Query().Get("for"))
			if err != nil {
				t.Error(err)
			}
			time.Sleep(d)
			if err := r.Context().Err(); err != nil {
				t.Errorf("S5: after %s: %v", d, context.Cause(r.Context()))
			}
			w.WriteHeader(http.StatusCreated)
		}}
		guard := newGuard(t, store)
		short := guard.Handler(handler, reserved, onceward.Lease(time.Second))
		long := guard.Handler(handler, reserved)
		var all sync.WaitGroup
		for i := range 50 {
			for name, h := range map[string]http.Handler{"short": short, "long": long} {
				all.Go(func() {
					target := fmt.Sprintf("/p?for=%dms", (i*997)%50_000)
					serve(h, newRequest(http.MethodPost, target, fmt.Sprint(name, i), `{}`)).
						want(t, "S5", http.StatusCreated, false)
				})
			}
		}
		all.Wait()
		before := len(store.seen())
		time.Sleep(time.Hour)
		if after := len(store.seen()); before == 0 || after != before {
			t.Errorf("S5: %d heartbeats, then %d more after all had ended", before, after-before)
		}
		handler.wantRuns(t, "S5", 100)
	})
}

// TestHeartbeatsGoTogether starts handlers within two seconds: their heartbeats come at the same moments, so that a
// store can write them with one statement.
func TestHeartbeatsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHeartbeatStore()
		slow := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(25 * time.Second)
			w.WriteHeader(http.StatusCreated)
		}}
		h := newGuard(t, store).Handler(slow, reserved, onceward.Deadline(time.Minute))
		const handlers = 5
		var running sync.WaitGroup
		for i := range handlers {
			running.Go(func() { post(h, fmt.Sprint("key-", i), `{}`) })
			time.Sleep(400 * time.Millisecond)
		}
		running.Wait()
		moments := store.seen()
		if len(moments) != 2*handlers {
			t.Errorf("S5: %d heartbeats of %d leases in 25 s, want two of each", len(moments), handlers)
		}
		if moments = slices.Compact(moments); len(moments) != 2 {
			t.Errorf("S5: the heartbeats came at %d moments, %s, want two", len(moments), moments)
		}
	})
}
