package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// TestHeldByAnother: another process holds the file for longer than the busy timeout.
func TestHeldByAnother(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path, sqlite.WithBusyTimeout(50*time.Millisecond))
	transacted(t, s, reservation("before"), inserting("before"), store.DecisionExecute, "E1")
	grant, err := s.Reserve(t.Context(), reservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: idOf("owned"), Attempt: grant.Record.Attempt}
	raw := openRaw(t, path)
	if err := raw.Exec(`BEGIN IMMEDIATE; INSERT INTO business VALUES ('theirs')`); err != nil {
		t.Fatal(err)
	}
	const text = "held by another process for longer than the busy timeout"
	started := time.Now()
	_, err = s.Transact(t.Context(), reservation("key"), never(t, "scenario 16: busy"))
	wantUnavailable(t, err, text, "scenario 16: transact")
	if waited := time.Since(started); waited < 50*time.Millisecond { // and the other process still holds the file
		t.Errorf("E1: waited %s, want the busy timeout of 50 ms", waited)
	}
	_, err = s.Reserve(t.Context(), reservation("key"))
	wantUnavailable(t, err, text, "scenario 16: reserve")
	wantUnavailable(t, s.Extend(t.Context(), claim, time.Minute), text, "scenario 16: extend")
	_, err = s.Sweep(t.Context(), 10)
	wantUnavailable(t, err, text, "scenario 16: sweep")
	transacted(t, s, reservation("before"), never(t, "I1"), store.DecisionReplay, "A6: a replay needs no writer")

	guard := newGuard(t, s)
	handler := paying()
	post(guard.Handler(handler, onceward.Transactional()), "http").
		wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "scenario 16: transactional")
	post(guard.Handler(handler, onceward.Reserved(onceward.FailureRetry)), "http").
		wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "scenario 16: reserved")
	handler.wantRuns(t, 0, "L2: fail closed")

	if err := raw.Exec(`COMMIT`); err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute, "scenario 16: afterwards")
	post(guard.Handler(handler, onceward.Transactional()), "http").want(t, http.StatusCreated, false,
		"scenario 16: afterwards")
	if err := s.Extend(t.Context(), claim, time.Minute); err != nil {
		t.Errorf("scenario 16: extend afterwards got %v", err)
	}
	wantRows(t, s, "row", 1, "I1")
	wantRows(t, s, "theirs", 1, "section 11: the other's write")
}

// TestGivingUpWhileBusy: a caller does not wait for the file longer than it wants to.
func TestGivingUpWhileBusy(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path, sqlite.WithBusyTimeout(time.Hour))
	raw := openRaw(t, path)
	if err := raw.Exec(`BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	await.Return(t, "the caller gives up, while the file is held", func() {
		_, err := s.Transact(ctx, reservation("key"), never(t, "the caller gave up"))
		wantUnavailable(t, err, "stopped waiting", "the context bounds the wait until work starts")
	})
	if s.InFlight(idOf("key")) {
		t.Error("a transaction that was given up is still in flight")
	}
	if err := raw.Exec(`ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute, "afterwards")
}

// TestHeldByAnotherStore: the handler of one store holds up the writes of another, for a bounded time.
func TestHeldByAnotherStore(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	one := openBusiness(t, path)
	other := openStore(t, path, sqlite.WithBusyTimeout(30*time.Millisecond))
	transacted(t, one, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
		_, err := other.Transact(t.Context(), reservation("key"), never(t, "I1: another store"))
		wantUnavailable(t, err, "held by another process", "E1: across stores a bounded busy wait")
		return inserting("row")(ctx, v)
	}, store.DecisionExecute, "E1")
	transacted(t, other, reservation("key"), never(t, "I1"), store.DecisionReplay, "I3: across stores")
	wantRows(t, other, "row", 1, "I1")
}

// TestContendingStores lets two stores of one process fight for the same keys, in both modes at once.
func TestContendingStores(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	stores := []*sqlite.Store{openBusiness(t, path), openStore(t, path)}
	const rounds = 100
	executed := make([]atomic.Int64, rounds)
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			store := stores[i%2]
			for round := range rounds {
				key := fmt.Sprint("key-", round)
				if i/2 == 2 {
					contendReserved(t, store, key, &executed[round])
				} else {
					contendTransactional(t, store, key, &executed[round])
				}
			}
		})
	}
	group.Wait()
	for round := range rounds {
		if n := executed[round].Load(); n != 1 {
			t.Errorf("I1: key %d was executed %d times", round, n)
		}
	}
}

// contendTransactional counts the transactions that committed.
func contendTransactional(t *testing.T, s *sqlite.Store, key string, executed *atomic.Int64) {
	v, err := s.Transact(t.Context(), reservation(key), inserting(key))
	switch {
	case err != nil:
		t.Errorf("transact of %q: %v", key, err)
	case v.Decision == store.DecisionExecute:
		executed.Add(1)
	case v.Decision != store.DecisionInProgress && v.Decision != store.DecisionReplay:
		t.Errorf("transact of %q got %s", key, v.Decision)
	}
}

// contendReserved counts the grants.
func contendReserved(t *testing.T, s *sqlite.Store, key string, executed *atomic.Int64) {
	v, err := s.Reserve(t.Context(), reservation(key))
	switch {
	case err != nil:
		t.Errorf("reserve of %q: %v", key, err)
	case v.Decision == store.DecisionExecute:
		executed.Add(1)
		if _, err := s.Complete(t.Context(), store.Claim{ID: idOf(key), Attempt: v.Record.Attempt},
			answerOf(key)); err != nil {
			t.Errorf("complete of %q: %v", key, err)
		}
	}
}

func answerOf(body string) *store.Completion {
	done := settled(store.TxCommit, body).Completion
	return &done
}

// TestClosed: after Close everything is refused, and nothing runs.
func TestClosed(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	if err := errors.Join(store.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := store.Transact(t.Context(), reservation("key"), never(t, "closed"))
	wantUnavailable(t, err, "closed", "transact after Close")
	_, err = store.Reserve(t.Context(), reservation("key"))
	wantUnavailable(t, err, "closed", "reserve after Close")
	wantUnavailable(t, store.Update(t.Context(), nil), "closed", "update after Close")
	_, err = store.Get(t.Context(), idOf("key"))
	wantUnavailable(t, err, "closed", "get after Close")
}

// TestOpenWhileHeld: a file whose tables are up to date can be opened while another process writes.
func TestOpenWhileHeld(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	openBusiness(t, path)
	raw := openRaw(t, path)
	if err := raw.Exec(`BEGIN IMMEDIATE; INSERT INTO business VALUES ('theirs')`); err != nil {
		t.Fatal(err)
	}
	second, err := sqlite.Open(t.Context(), path, sqlite.WithBusyTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatalf("scenario 16: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestBusyTimeoutsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, busy := range []time.Duration{-1, 2 * time.Hour, math.MaxInt64} {
		store, err := sqlite.Open(t.Context(), newFile(t), sqlite.WithBusyTimeout(busy))
		if err == nil {
			t.Errorf("a busy timeout of %s was accepted (%v)", busy, store.Close())
		}
	}
}
