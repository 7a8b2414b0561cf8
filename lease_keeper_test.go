package onceward

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/store"
)

// extender is the part of a store that a keeper uses.
type extender struct {
	store.Store
	mu    sync.Mutex
	beats map[string]int
}

func (e *extender) Extend(_ context.Context, c store.Claim, _ time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.beats[c.Key]++
	return nil
}

func newLease(key string, ttl, until time.Duration) *lease {
	now := time.Now()
	ctx := new(lazyContext).start(context.Background(), now.Add(until), store.ErrDeadline)
	ctx.leased = true
	return &lease{claim: store.Claim{ID: store.ID{Key: key}}, ttl: ttl, ctx: ctx, start: now, until: now.Add(until)}
}

// TestALeaseEndsWhileTheMachineIsSuspended: the wall clock continues then, and the monotonic clock does not (S5).
func TestALeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ran, suspended time.Duration
		held           bool
	}{
		"neither": {0, 0, true}, "ran": {time.Minute, 0, false}, "suspended": {0, time.Minute, false},
		"shortly": {time.Second, time.Second, true}, "set back": {time.Minute, -time.Hour, false},
	} {
		l := newLease("k", time.Minute, time.Hour)
		now := l.start.Add(test.ran)
		if _, held := l.held(now, now.Round(0).Add(test.suspended)); held != test.held {
			t.Errorf("S5: %s: the lease is held: %t", name, held)
		}
	}
}

func TestLeasesAreKeptInTheirOrder(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var h leaseHeap
	start := time.Now()
	var all []*lease
	for range 200 {
		l := &lease{next: start.Add(time.Duration(random.IntN(1000)) * time.Second)}
		all = append(all, l)
		heap.Push(&h, l)
	}
	for _, l := range all[:100] {
		if h[l.place] != l {
			t.Fatal("S5: a lease does not know its place")
		}
		heap.Remove(&h, l.place)
		if l.place != -1 {
			t.Fatal("S5: a removed lease still has a place")
		}
	}
	last := start
	for h.Len() > 0 {
		l := heap.Pop(&h).(*lease)
		if l.next.Before(last) {
			t.Fatal("S5: a lease that is due earlier comes later")
		}
		last = l.next
	}
}

func TestTheKeeperForgetsWhatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &extender{beats: make(map[string]int)}
		g := &Guard{store: store, config: Config{StoreTimeout: time.Second}}
		g.keeper.guard = g
		k := &g.keeper
		long, short, gone, overdue := newLease("long", 30*time.Second, time.Hour), newLease("short", 3*time.Second,
			time.Hour),
			newLease("gone", 30*time.Second, time.Hour), newLease("overdue", 3*time.Second, 5*time.Second)
		for _, l := range []*lease{long, gone, short, overdue} { // the timer is set again for the earlier one
			k.add(l)
		}
		k.remove(gone)
		k.remove(gone)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		want := map[string]int{"long": 6, "short": 60, "overdue": 4, "gone": 0}
		for key, n := range want {
			if got := store.beats[key]; got < n || got > n+1 {
				t.Errorf("S5: %d heartbeats of the lease %s in a minute, want %d", got, key, n)
			}
		}
		k.remove(long)
		k.remove(short)
		k.remove(overdue)
		time.Sleep(time.Hour)
		synctest.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.leases) != 0 || !k.armed.IsZero() {
			t.Errorf("S5: %d leases are left, the timer is set for %v", len(k.leases), k.armed)
		}
	})
}

func TestALeaseThatEndsDuringItsHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &Guard{store: &extender{beats: make(map[string]int)}, config: Config{StoreTimeout: time.Second}}
		g.keeper.guard = g
		l := newLease("k", 3*time.Second, time.Hour)
		g.keeper.remove(l) // as if it had ended while the heartbeat was on its way
		g.keeper.extend(l)
		if len(g.keeper.leases) != 0 {
			t.Error("S5: a lease that has ended came back")
		}
		g.keeper.lose(l, store.ErrFenced)
		if l.lost || l.ctx.Err() != nil {
			t.Error("S5: a lease that has ended was lost")
		}
	})
}
