package breaker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
)

// stalled answers reads; its writes hang, as with a disk that stalls or a synchronous standby that is gone.
type stalled struct {
	*narrow
	share time.Duration // work may take the lease, divided by this
}

func (s *stalled) Reserve(ctx context.Context, _ *store.Reservation) (store.Verdict, error) {
	return store.Verdict{}, hang(ctx)
}

func (s *stalled) LongestWork(lease time.Duration) time.Duration { return lease / s.share }

// sleeping is a handler that works for a while.
func sleeping(work time.Duration) func(context.Context, store.Verdict) store.Settlement {
	return func(context.Context, store.Verdict) store.Settlement {
		time.Sleep(work)
		return store.Settlement{}
	}
}

// TestWritesThatHang: a handler at work excuses those who can wait for it, which are transactions, and all writes where
// there is one writer. It excuses no others: the look-up in their place would be answered by a store that only reads.
func TestWritesThatHang(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		share time.Duration
		told  []string
	}{
		"many writers": {1, []string{"closed>open"}},
		"one writer":   {3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, told := around(t, &stalled{newNarrow(), test.share}, breaker.Config{OpenFor: time.Hour})
				var crowd sync.WaitGroup
				crowd.Go(func() { _, _ = s.Transact(t.Context(), &store.Reservation{}, sleeping(2*time.Minute)) })
				synctest.Wait()
				for i := range 100 {
					crowd.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
						defer cancel()
						if i%2 == 0 { // these may wait, and so say nothing good of the store either
							_, _ = s.Transact(ctx, &store.Reservation{}, sleeping(0))
						} else {
							_, _ = s.Reserve(ctx, &store.Reservation{})
						}
					})
					time.Sleep(100 * time.Millisecond)
				}
				told.want(t, test.told...)
				crowd.Wait()
			})
		})
	}
}

// TestReadsThatHang count although handlers are at work, also where there is one writer: they do not wait for it.
func TestReadsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := &stalled{newNarrow(), 3}
		s, told := around(t, inside, breaker.Config{})
		over := make(chan struct{})
		var crowd sync.WaitGroup
		crowd.Go(func() {
			_, _ = s.Transact(t.Context(), &store.Reservation{}, func(context.Context, store.Verdict) store.Settlement {
				<-over
				return store.Settlement{}
			})
		})
		synctest.Wait()
		inside.fault = hang
		for range 5 {
			crowd.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, _ = s.Get(ctx, someID)
			})
		}
		time.Sleep(time.Second + time.Millisecond)
		told.want(t, "closed>open")
		synctest.Wait()
		inside.fault = nil
		close(over)
		crowd.Wait()
	})
}

// TestGapBetweenHandlers: what has waited for a handler is excused right behind it too, while that one is committed and the
// next has not begun.
func TestGapBetweenHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newNarrow()
		inside.after = 50 * time.Millisecond // a commit
		s, told := around(t, inside, breaker.Config{})
		var crowd sync.WaitGroup
		transact := func(work time.Duration) {
			crowd.Go(func() { _, _ = s.Transact(t.Context(), &store.Reservation{}, sleeping(work)) })
		}
		transact(980 * time.Millisecond)
		time.Sleep(10 * time.Millisecond)
		for range 5 {
			transact(0)
		}
		crowd.Wait()
		told.want(t)
	})
}
