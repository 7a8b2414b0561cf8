package breaker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
)

// narrow is a store with one connection for transactions: they wait for each other, and nothing else does.
type narrow struct {
	*sick
	turn   chan struct{}
	behind time.Duration // how long Stats takes
}

func newNarrow() *narrow { return &narrow{sick: newSick(), turn: make(chan struct{}, 1)} }

func (n *narrow) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return v, errors.Join(store.ErrUnavailable, ctx.Err())
	}
	return n.sick.Transact(ctx, r, work)
}

func (n *narrow) Stats(ctx context.Context) (store.Stats, error) {
	time.Sleep(n.behind)
	return n.sick.Stats(ctx)
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return errors.Join(store.ErrUnavailable, ctx.Err())
}

// TestWaitingForHandlersIsNotSlowness: what waits for a handler in its transaction says nothing about the store, whether it
// gets its turn or gives up. A store that hangs is noticed all the same.
func TestWaitingForHandlersIsNotSlowness(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{
		"the turn comes": time.Minute, "given up late": 5 * time.Second, "given up early": time.Second / 2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inside := newNarrow()
				inside.fault = func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil }
				s, told := around(t, inside, breaker.Config{})
				transact := func(work time.Duration) error {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					_, err := s.Transact(ctx, &store.Reservation{}, func(context.Context, store.Verdict) store.Settlement {
						time.Sleep(work)
						return store.Settlement{}
					})
					return err
				}
				var crowd sync.WaitGroup
				crowd.Go(func() { _ = transact(20 * time.Second) })
				time.Sleep(time.Second / 2)
				looks := inside.calls.Load()
				for range 30 {
					crowd.Go(func() { _ = transact(0) })
				}
				time.Sleep(10 * time.Second)
				told.want(t)
				if n := inside.calls.Load() - looks; n != 1 {
					t.Errorf("L2: %d look-ups for calls that were slow at the same time, want them to share one", n)
				}
				synctest.Wait()
				inside.fault = hang
				for range 5 {
					crowd.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						_, _ = s.Get(ctx, someID)
					})
				}
				time.Sleep(2*time.Second + time.Millisecond)
				told.want(t, "closed>open")
				crowd.Wait()
			})
		})
	}
}

// TestProbeThatWaitsForAHandler closes the breaker: the store answers.
func TestProbeThatWaitsForAHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newNarrow()
		s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		slowly := func(context.Context, store.Verdict) store.Settlement {
			time.Sleep(time.Minute)
			return store.Settlement{}
		}
		go func() { _, _ = s.Transact(t.Context(), &store.Reservation{}, slowly) }()
		synctest.Wait()
		inside.fault = func(context.Context) error { return errDown }
		_ = get(t, s)
		inside.fault = nil
		time.Sleep(6 * time.Second)
		go func() { _, _ = s.Transact(t.Context(), &store.Reservation{}, slowly) }()
		time.Sleep(time.Second + time.Millisecond)
		told.want(t, "closed>open", "open>half_open", "half_open>closed")
		time.Sleep(3 * time.Minute)
	})
}

// TestJobsInTheBackgroundMayTakeLong as long as the store answers others.
func TestJobsInTheBackgroundMayTakeLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newNarrow()
		inside.behind = 30 * time.Second
		s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		if _, err := s.Stats(t.Context()); err != nil {
			t.Error(err)
		}
		told.want(t)
		synctest.Wait()
		inside.fault = func(context.Context) error { panic("a store with a bug") }
		if _, err := s.Stats(t.Context()); err != nil {
			t.Error(err)
		}
		told.want(t, "closed>open")
	})
}
