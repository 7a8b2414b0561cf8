package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// E3: others come while a step holds its transaction. It holds the lock of its key, not that of the row.

// TestHeartbeatPassesAStep: the lease is extended while the step goes on, and the point does not take that back.
func TestHeartbeatPassesAStep(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			id := f.store.RecordID(f.claim.ID)
			var extended time.Time
			f.during = func(context.Context, int64) error {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := f.store.Extend(ctx, f.claim, time.Hour); err != nil {
					t.Errorf("E2: a heartbeat while the step holds its transaction got %v", err)
				}
				extended, _ = f.due(t, id)
				return nil
			}
			must(t, f.reach(charged))
			f.wantReached(t, 1, charged, "E3")
			due, now := f.due(t, id)
			if !due.Equal(extended) || due.Sub(now) < 50*time.Minute {
				t.Errorf("E2: the lease was extended to %s during the step, and ends at %s after it", extended, due)
			}
		})
	}
}

// intrusion takes the record away while a step runs.
type intrusion func(t testing.TB, f *stepFault, other *postgres.Store)

var intrusions = map[string]intrusion{
	"another attempt": func(t testing.TB, f *stepFault, other *postgres.Store) {
		exec(t, f.admin, `UPDATE onceward_record SET due = 1`) // its lease is over
		takeOver(t, other, f.claim.Key, time.Minute)
	},
	"another attempt, with the same point": func(t testing.TB, f *stepFault, other *postgres.Store) {
		exec(t, f.admin, `UPDATE onceward_record SET due = 1`)
		must(t, other.Checkpoint(t.Context(), takeOver(t, other, f.claim.Key, time.Minute), charged))
	},
	"an answer": func(t testing.TB, f *stepFault, other *postgres.Store) { complete(t, other, f.claim, "done") },
	"a release": func(t testing.TB, f *stepFault, other *postgres.Store) {
		must(t, other.Release(t.Context(), f.claim, "no stock"))
	},
	"the unknown": func(t testing.TB, f *stepFault, other *postgres.Store) {
		must(t, other.Abandon(t.Context(), f.claim, "timeout"))
	},
	"an operator": func(t testing.TB, f *stepFault, other *postgres.Store) {
		must(t, other.Bust(t.Context(), f.claim.ID, true))
	},
	"a deletion": func(t testing.TB, f *stepFault, _ *postgres.Store) { exec(t, f.admin, `DELETE FROM onceward_record`) },
}

// TestStepLosesItsRecord: whoever takes the record goes through while the step runs, and nothing of the step is kept.
func TestStepLosesItsRecord(t *testing.T) {
	t.Parallel()
	for name, intrude := range intrusions {
		t.Run("to "+name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			other := s.store(t, pgxHandle, s.url)
			f := newStepFault(t, s, pgxHandle, "paid")
			var left store.Record
			f.during = func(context.Context, int64) error {
				intrude(t, f, other)
				left, _ = other.Get(t.Context(), f.claim.ID)
				return nil
			}
			err := f.reach(charged)
			var fenced *store.FencedError
			if !errors.As(err, &fenced) || errors.Is(err, store.ErrOutcomeUnknown) || fenced.Attempt != f.claim.Attempt {
				t.Errorf("S6: got %v, want a *FencedError", err)
			}
			f.wantRows(t, "paid", 0, "S6: its writes are undone")
			f.wantRuns(t, 1, "S6: it is not run again")
			after, _ := other.Get(t.Context(), f.claim.ID)
			if after.State != left.State || after.Attempt != left.Attempt || after.Point != left.Point {
				t.Errorf("S6: the record was %s at attempt %d and %q, and is %s at %d and %q",
					left.State, left.Attempt, left.Point, after.State, after.Attempt, after.Point)
			}
		})
	}
}

// wantLocked checks that a step is told at once to come again.
func wantLocked(t testing.TB, f *stepFault) {
	t.Helper()
	ran, started := f.runs.Load(), time.Now()
	wantNotExecuted(t, f.reach(charged), "the lock is held")
	if took := time.Since(started); took > 3*time.Second {
		t.Errorf("E3: a step that could not begin was told so after %s", took)
	}
	f.wantRuns(t, ran, "E3: a step that could not begin")
}

// stalled is an operation of one second's lease whose owner has stopped in mid-step, and its next attempt elsewhere. The
// owner's step goes on when it is told, and its end comes from the channel.
func stalled(t *testing.T) (next *stepFault, done <-chan error, goOn func()) {
	t.Helper()
	s := newSite(t, servers.Postgres(t))
	st := s.store(t, pgxHandle, s.url)
	owner := takeOver(t, st, "paid", time.Second)
	entered, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- st.CheckpointTx(context.Background(), owner, time.Second, func(ctx context.Context) (store.Checkpoint, error) {
			err := insertPgx(ctx, "paid")
			close(entered)
			<-release
			return store.Checkpoint{Point: "stale"}, err
		})
	}()
	await(t, "the step", entered)
	next = &stepFault{site: s, handle: pgxHandle, store: s.store(t, pgxHandle, s.url)}
	next.claim = takeOver(t, next.store, "paid", time.Minute)
	return next, ended, func() { close(release) }
}

// TestStalledOwnerGoesOn: the next attempt's step is refused at once while the lock is held, and works when it is not.
func TestStalledOwnerGoesOn(t *testing.T) {
	t.Parallel()
	next, done, goOn := stalled(t)
	for range 3 {
		wantLocked(t, next)
	}
	goOn()
	if err := await(t, "the end of the stalled step", done); !errors.Is(err, store.ErrFenced) {
		t.Errorf("S6: the step of an owner that was replaced got %v, want ErrFenced", err)
	}
	next.wantRows(t, "paid", 0, "S6")
	must(t, next.reach(charged))
	next.wantReached(t, 1, charged, "E3: when the lock is gone")
}

// TestStalledOwnerLosesItsLock: the server puts a step out that is idle for little longer than its lease, which is six
// seconds here. What the owner says later comes to nothing.
func TestStalledOwnerLosesItsLock(t *testing.T) {
	t.Parallel()
	next, done, goOn := stalled(t)
	wantLocked(t, next)
	next.insists(t, charged)
	next.wantReached(t, 1, charged, "E8: no path leaves a key locked")
	goOn()
	if err := await(t, "the end of the stalled step", done); !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("S6: the step of an owner that was put out got %v, want ErrFenced or ErrUnavailable", err)
	}
	next.wantReached(t, 1, charged, "S6: what came late")
}
