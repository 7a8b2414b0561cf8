package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// groupRun is what became of one member of a group.
type groupRun struct {
	key  string
	runs atomic.Int64
	v    store.Verdict
	err  error
}

// runGroup queues a transaction for each key, in this order, and then lets the writer run them as one group.
func runGroup(t testing.TB, s *Store, keys []string, body func(ctx context.Context, key string) store.Settlement, letGo func()) []*groupRun {
	t.Helper()
	var group sync.WaitGroup
	all := make([]*groupRun, len(keys))
	for i, key := range keys {
		run := &groupRun{key: key}
		all[i] = run
		group.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					run.err = fmt.Errorf("panicked: %v", p)
				}
			}()
			run.v, run.err = s.Transact(context.Background(), insideReservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
				run.runs.Add(1)
				return body(ctx, key)
			})
		})
		awaitQueue(t, s, i+1)
	}
	letGo()
	group.Wait()
	return all
}

// countCommits counts the transactions that the writer commits with something in them.
func countCommits(t testing.TB, s *Store) *atomic.Int64 {
	t.Helper()
	commits := new(atomic.Int64)
	inWriter(t, s, func(w *writer) error {
		w.raw.CommitHook(func() bool {
			commits.Add(1)
			return true
		})
		return nil
	})
	commits.Store(0)
	return commits
}

// TestGroupCommit: what waits together is committed together, in all modes.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	commits := countCommits(t, s)
	const n = 50
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			key := fmt.Sprint("reserved-", i)
			if v, err := s.Reserve(context.Background(), insideReservation(key)); err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("reserve got (%s, %v)", v.Decision, err)
			}
		})
		group.Go(func() {
			key := fmt.Sprint("transactional-", i)
			if v, err := s.Transact(context.Background(), insideReservation(key), insertAndCommit(key)); err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("transact got (%s, %v)", v.Decision, err)
			}
		})
	}
	awaitQueue(t, s, 2*n)
	letGo()
	group.Wait()
	for i := range n {
		wantWhole(t, s, fmt.Sprint("transactional-", i))
	}
	if got := commits.Load(); got > n {
		t.Errorf("%d operations took %d commits, want them shared", 2*n, got)
	}
}

// TestGivingUpInTheQueue: who gives up before its turn is not executed, and does not hold up the others.
func TestGivingUpInTheQueue(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	letGo := holdWriter(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var ran atomic.Int64
	for i := range 20 {
		group.Go(func() {
			key := fmt.Sprint("leaves-", i)
			_, err := s.Transact(ctx, insideReservation(key), func(context.Context, store.Verdict) store.Settlement {
				ran.Add(1)
				return store.Settlement{}
			})
			if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up got %v", err)
			}
			if s.InFlight(insideID(key)) {
				t.Error("who gave up is still in flight")
			}
		})
		group.Go(func() {
			if _, err := s.Reserve(ctx, insideReservation(fmt.Sprint("reserve-", i))); !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up got %v", err)
			}
		})
	}
	awaitQueue(t, s, 40)
	var stays sync.WaitGroup
	stays.Go(func() {
		if v, err := s.Transact(context.Background(), insideReservation("key"), insertAndCommit("key")); err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("who stayed got (%s, %v)", v.Decision, err)
		}
	})
	awaitQueue(t, s, 41)
	cancel()
	group.Wait() // they do not wait for the writer, which is still held
	letGo()
	stays.Wait()
	wantOnceMore(t, s, true)
	if ran.Load() != 0 {
		t.Errorf("%d of those who gave up were executed", ran.Load())
	}
	for i := range 20 {
		if state := stateOf(t, s, fmt.Sprint("reserve-", i)); state != store.StateNone {
			t.Errorf("S9: a reservation that was given up in the queue left a record that is %s", state)
		}
	}
}

// TestGivingUpInTheTurn: who gives up while its work runs is executed all the same (E6), and learns it.
func TestGivingUpInTheTurn(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	ctx, cancel := context.WithCancel(t.Context())
	v, err := s.Transact(ctx, insideReservation("key"), func(workCtx context.Context, v store.Verdict) store.Settlement {
		cancel()
		return insertAndCommit("key")(context.WithoutCancel(workCtx), v)
	})
	if err != nil || v.Decision != store.DecisionExecute || !wantWhole(t, s, "key") {
		t.Errorf("E6: got (%s, %v)", v.Decision, err)
	}
}

// TestHeartbeatsBetweenSlowHandlers: a crowd of slow handlers does not hold up an owner's heartbeat until the last of them.
func TestHeartbeatsBetweenSlowHandlers(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	grant, err := s.Reserve(t.Context(), insideReservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
	var finished atomic.Int64
	var beat, group sync.WaitGroup
	var before int64
	letGo := holdWriter(t, s)
	const crowd = 12
	first := make(chan struct{})
	for i := range crowd {
		group.Go(func() {
			_, err := s.Transact(context.Background(), insideReservation(fmt.Sprint("slow-", i)), func(context.Context, store.Verdict) store.Settlement {
				if finished.Load() == 0 {
					close(first)
				}
				time.Sleep(groupTime + time.Millisecond) // being slow is what is tested
				finished.Add(1)
				return store.Settlement{}
			})
			if err != nil {
				t.Error(err)
			}
		})
		awaitQueue(t, s, i+1)
	}
	beat.Go(func() {
		<-first
		if err := s.Extend(context.Background(), claim, time.Minute); err != nil {
			t.Error(err)
		}
		before = finished.Load()
	})
	letGo()
	beat.Wait()
	group.Wait()
	if before > crowd/2 {
		t.Errorf("S5: a heartbeat waited for %d of %d slow handlers", before, crowd)
	}
}
