package outbox_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
)

// emptyStore has no messages, and notes when it is asked. It panics where a worker without messages has no business.
type emptyStore struct {
	outbox.Store
	hears bool
	hints chan struct{}

	mu    sync.Mutex
	old   int // messages to remove
	calls []time.Time
	kinds map[string]int
}

func newEmptyStore(hears bool) *emptyStore {
	return &emptyStore{hears: hears, hints: make(chan struct{}, 1), kinds: make(map[string]int)}
}

func (s *emptyStore) called(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, time.Now())
	s.kinds[kind]++
}

func (s *emptyStore) ClaimMessages(context.Context, []outbox.ClaimRequest, time.Duration) ([]outbox.Claimed, error) {
	s.called("claim")
	return nil, nil
}

func (s *emptyStore) FreeMessages(context.Context) (int, error) {
	s.called("free")
	return 0, nil
}

func (s *emptyStore) PurgeMessages(_ context.Context, _ time.Duration, limit int) (int, error) {
	s.called("purge")
	s.mu.Lock()
	defer s.mu.Unlock()
	purged := min(s.old, limit)
	s.old -= purged
	return purged, nil
}

func (s *emptyStore) WatchMessages() (<-chan struct{}, func()) { return s.hints, func() {} }

func (s *emptyStore) HearsMessages() bool { return s.hears }

// asked returns how often it was asked for what, once all is quiet.
func (s *emptyStore) asked(kind string) int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[kind]
}

// forget begins to count again.
func (s *emptyStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.kinds = nil, make(map[string]int)
}

// most is the largest number of calls within any second.
func (s *emptyStore) most() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, from := range s.calls {
		n := 0
		for _, at := range s.calls[i:] {
			if at.Sub(from) < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// inIdleTime runs a worker that has nothing to do and has settled down.
func inIdleTime(
	t *testing.T, hears bool, test func(t *testing.T, store *emptyStore), configure ...func(*outbox.WorkerConfig),
) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newEmptyStore(hears)
		b := &bench{T: t}
		stop := b.start(b.worker(store, outbox.Route{Handler: new(clerk).deliver}, configure...))
		defer stop()
		time.Sleep(10 * time.Second)
		store.forget()
		test(t, store)
	})
}

// TestIdle: a worker without work asks at most twice in any second, and half as often where the store tells it of
// messages.
func TestIdle(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hears  bool
		most   int
		claims int // in ten minutes, together with looks after what is old
	}{
		"polls": {false, 2, 1200},
		"hears": {true, 2, 600},
	} {
		t.Run(name, func(t *testing.T) {
			inIdleTime(t, test.hears, func(t *testing.T, store *emptyStore) {
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if got := store.most(); got > test.most {
					t.Errorf("it asked %d times in a second, want at most %d", got, test.most)
				}
				if all := len(store.calls); all < test.claims-5 || all > test.claims+5 {
					t.Errorf("it asked %d times in ten minutes, want %d", all, test.claims)
				}
				if free, purge := store.asked("free"), store.asked("purge"); free < 38 || free > 40 || purge < 9 || purge > 10 {
					t.Errorf("it looked %d times after what is stuck and %d times after what is old", free, purge)
				}
			})
		})
	}
}

// TestIdleWithAShortLease: a lease that is no longer than a few looks leaves room for claims between the looks after
// what is stuck.
func TestIdleWithAShortLease(t *testing.T) {
	for name, lease := range map[string]time.Duration{
		"as long as a look": time.Second, "shorter": 300 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			inIdleTime(t, true, func(t *testing.T, store *emptyStore) {
				time.Sleep(time.Minute)
				if claims, frees := store.asked("claim"), store.asked("free"); claims < 25 || frees < 25 || claims+frees > 65 {
					t.Errorf("in a minute it claimed %d times and looked %d times after what is stuck, want both half the time",
						claims, frees)
				}
			}, func(c *outbox.WorkerConfig) { c.Lease = lease })
		})
	}
}

// TestManyOldMessages: what is old is removed as quickly as it comes, and claims are made in between.
func TestManyOldMessages(t *testing.T) {
	inIdleTime(t, false, func(t *testing.T, store *emptyStore) {
		store.mu.Lock()
		store.old = 100_500
		store.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if store.old != 0 {
			t.Errorf("%d are left after two minutes", store.old)
		}
		if claims := store.asked("claim"); claims < 200 {
			t.Errorf("there were only %d claims meanwhile", claims)
		}
	})
}

// TestHint: a worker that waits looks when it is told, and then soon again, because there may be more.
func TestHint(t *testing.T) {
	for name, hears := range map[string]bool{"polls": false, "hears": true} {
		t.Run(name, func(t *testing.T) {
			inIdleTime(t, hears, func(t *testing.T, store *emptyStore) {
				// A moment at which it does not look by itself.
				time.Sleep(time.Microsecond)
				synctest.Wait()
				store.forget()
				store.hints <- struct{}{}
				synctest.Wait()
				if n := store.asked("claim"); n != 1 {
					t.Errorf("it looked %d times when it was told", n)
				}
				time.Sleep(50 * time.Millisecond)
				if n := store.asked("claim"); n < 3 || n > 6 {
					t.Errorf("it looked %d times in the moment after it was told", n)
				}
				time.Sleep(10 * time.Second)
				store.forget()
				time.Sleep(time.Minute)
				if got := store.most(); got > 2 {
					t.Errorf("it asks %d times in a second when it has settled down again", got)
				}
			})
		})
	}
}
