package onceward_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// outage is a store that can be down. It counts the calls by which grants are looked for.
type outage struct {
	*faultyStore
	down  atomic.Bool
	calls atomic.Int64

	mu      sync.Mutex
	at      []time.Time
	running int
	most    int // calls at once
}

// newOutage returns a store that is down. With granted its reservations are made, and their replies lost.
func newOutage(granted bool) *outage {
	o := &outage{faultyStore: newFaultyStore()}
	o.down.Store(true)
	o.reserve = func(ctx context.Context, r *store.Reservation) (v store.Verdict, err error) {
		defer o.enter()()
		if granted || !o.down.Load() {
			v, err = o.Store.Reserve(ctx, r)
		}
		if o.down.Load() {
			return store.Verdict{}, errDown
		}
		return v, err
	}
	o.get = func(ctx context.Context, id store.ID) (store.Record, error) {
		defer o.enter()()
		if o.down.Load() {
			return store.Record{}, errDown
		}
		return o.Store.Get(ctx, id)
	}
	return o
}

// enter counts a call, and lets it take a moment.
func (o *outage) enter() (leave func()) {
	o.calls.Add(1)
	o.mu.Lock()
	o.at = append(o.at, time.Now())
	o.running++
	o.most = max(o.most, o.running)
	o.mu.Unlock()
	time.Sleep(time.Millisecond)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running--
	}
}

// forget starts to count again.
func (o *outage) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls.Store(0)
	o.at, o.most = nil, 0
}

// refuseMany sends so many requests at once, which are all refused.
func (o *outage) refuseMany(t *testing.T, h http.Handler, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			post(h, fmt.Sprint("k", i), `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		})
	}
	all.Wait()
	o.forget()
}

func (o *outage) states(t *testing.T, n int) map[store.State]int {
	t.Helper()
	states := make(map[store.State]int)
	for i := range n {
		rec, err := o.Store.Get(t.Context(), aliceID(fmt.Sprint("k", i)))
		if err != nil {
			t.Fatal(err)
		}
		states[rec.State]++
	}
	return states
}

// Scenario 47: thousands of requests are refused in an outage, and leave no work that overloads the store.
func TestRefusedReservationsAreSearchedForTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newOutage(false)
		h := newGuard(t, store).Handler(new(counted), reserved, onceward.Lease(20*time.Second))
		store.refuseMany(t, h, 800)
		time.Sleep(15 * time.Second)
		if n := store.calls.Load(); n < 3 || n > 20 {
			t.Errorf("L2: the store was called %d times in 15 s of an outage, want a handful", n)
		}
		store.mu.Lock()
		if store.most > 1 {
			t.Errorf("L2: %d calls at once, want one", store.most)
		}
		for i := 2; i < len(store.at); i++ {
			last, pause := store.at[i-1].Sub(store.at[i-2]), store.at[i].Sub(store.at[i-1])
			if pause < last {
				t.Errorf("L2: a pause of %s after one of %s", pause, last)
			}
		}
		store.mu.Unlock()

		time.Sleep(10 * time.Second) // all leases are over
		store.forget()
		time.Sleep(time.Hour)
		if n := store.calls.Load(); n != 0 {
			t.Errorf("S9: %d calls for grants whose leases are over", n)
		}
		// What is refused now does not start at the first pause again: the store has not answered since.
		post(h, "late", `{}`)
		store.forget()
		time.Sleep(time.Second)
		if n := store.calls.Load(); n > 3 {
			t.Errorf("L2: %d calls in the second after another refusal", n)
		}
		time.Sleep(time.Minute)
	})
}

func TestLostGrantsAreReleasedWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const requests = 400
		s, handler := newOutage(true), new(counted)
		h := newGuard(t, s).Handler(handler, reserved, onceward.Lease(time.Minute))
		s.refuseMany(t, h, requests)
		time.Sleep(40 * time.Second) // longer than settling is tried
		if states := s.states(t, requests); states[store.StateInProgress] != requests {
			t.Fatalf("the store holds %v, want %d grants", states, requests)
		}
		s.down.Store(false)
		time.Sleep(5 * time.Second)
		if states := s.states(t, requests); states[store.StateRetryable] != requests {
			t.Errorf("S9: 5 s after the store is back it holds %v, want %d released", states, requests)
		}
		handler.wantRuns(t, "L2", 0)
		post(h, "k7", `{}`).want(t, "S9: a retry executes", http.StatusCreated, false)
		time.Sleep(time.Minute)
	})
}

func TestTheSearchForLostGrantsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const requests, bound = 1200, 1024
		s := newOutage(true)
		h := newGuard(t, s).Handler(new(counted), reserved, onceward.Lease(time.Minute))
		s.refuseMany(t, h, requests)
		s.down.Store(false)
		time.Sleep(10 * time.Second)
		states := s.states(t, requests)
		if states[store.StateRetryable] != bound || states[store.StateInProgress] != requests-bound {
			t.Errorf("S9: the store holds %v, want %d released and the others in progress", states, bound)
		}
		// The others end by their lease.
		time.Sleep(time.Minute)
		if _, err := s.Sweep(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
		if states := s.states(t, requests); states[store.StateUnknown] != requests-bound {
			t.Errorf("S2: the store holds %v", states)
		}
	})
}

func TestOneLostGrantThatCannotBeReleasedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newOutage(true)
		s.release = func(ctx context.Context, c store.Claim, reason string) error {
			if c.Key == "k0" {
				return errDown
			}
			return s.Store.Release(ctx, c, reason)
		}
		h := newGuard(t, s).Handler(new(counted), reserved, onceward.Lease(time.Minute))
		for i := range 10 {
			post(h, fmt.Sprint("k", i), `{}`)
		}
		s.down.Store(false)
		time.Sleep(10 * time.Second)
		if states := s.states(t, 10); states[store.StateRetryable] != 9 {
			t.Errorf("S9: the store holds %v, want 9 released", states)
		}
		time.Sleep(time.Minute)
	})
}

// TestAGrantThatArrivesLate: a reservation may still be on its way when its caller has given up on it, as when the
// store waits for its standby. It is looked for again until its lease could have begun no more.
func TestAGrantThatArrivesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		var arrived sync.Once
		s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
			late := *r
			late.Fingerprints = slices.Clone(r.Fingerprints)
			arrived.Do(func() {
				time.AfterFunc(8*time.Second, func() { _, _ = s.Store.Reserve(context.Background(), &late) })
			})
			<-ctx.Done()
			return store.Verdict{}, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
		}
		h := newGuard(t, s).Handler(new(counted), reserved, onceward.Lease(30*time.Second))
		post(h, "k", `{}`).wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(20 * time.Second)
		rec, err := s.Store.Get(t.Context(), aliceID("k"))
		if err != nil || rec.State != store.StateRetryable {
			t.Errorf("E8: the record is (%s, %v), want that it may be retried: nothing was executed", rec.State, err)
		}
		time.Sleep(time.Minute)
	})
}
