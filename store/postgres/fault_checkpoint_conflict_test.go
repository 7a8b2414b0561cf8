package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// E3: the server undoes a step, because of its neighbours or because of what the step did.

// raising is a statement that fails with a code.
func raising(code string) string {
	return fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '%s'; END $$`, code)
}

// TestStepUndoneByNeighboursIsRunAgain has a statement of the step fail as it does by its neighbours. Whether the step
// passes the error on, wraps it or overlooks it, it gets another chance.
func TestStepUndoneByNeighboursIsRunAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	answers := map[string]func(err error) error{
		"passed on":  func(err error) error { return err },
		"replaced":   func(error) error { return errors.New("could not book") },
		"overlooked": func(error) error { return nil },
	}
	for _, h := range someHandles {
		for _, code := range []string{"40001", "40P01"} {
			for name, answer := range answers {
				t.Run(h.name+"/"+code+"/"+name, func(t *testing.T) {
					f := newStepFault(t, s, h, t.Name())
					f.during = func(ctx context.Context, run int64) error {
						if run > 2 {
							return nil
						}
						return answer(h.run(ctx, raising(code)))
					}
					must(t, f.reach(charged))
					f.wantRuns(t, 3, "it is run again")
					f.wantReached(t, 1, charged, "nothing of the first runs is kept")
				})
			}
		}
	}
}

// TestStepsInADeadlock has two steps of two operations wait for each other.
func TestStepsInADeadlock(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			exec(t, s.admin, `CREATE TABLE balance (account TEXT PRIMARY KEY, amount INT NOT NULL)`)
			exec(t, s.admin, `INSERT INTO balance VALUES ('a', 0), ('b', 0)`)
			st := s.store(t, h, s.url+"&deadlock_timeout=50ms")
			both := newMeeting(2)
			var runs atomic.Int64
			transfer := func(from, to string) <-chan error {
				c := takeOver(t, st, from+to, time.Minute)
				done := make(chan error, 1)
				go func() {
					done <- st.CheckpointTx(context.Background(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
						err := h.change(ctx, from)
						if runs.Add(1) <= 2 {
							both.meet(t)
						}
						return charged, errors.Join(err, h.change(ctx, to))
					})
				}()
				return done
			}
			forth, back := transfer("a", "b"), transfer("b", "a")
			must(t, await.Value(t, "the end of a step", forth))
			must(t, await.Value(t, "the end of a step", back))
			if n := runs.Load(); n < 3 {
				t.Errorf("there were %d runs: none was undone", n)
			}
			if n := number(t, s.admin, `SELECT min(amount) + max(amount) FROM balance`); n != 4 {
				t.Errorf("E3: the rows were changed %d times together, want 4", n)
			}
		})
	}
}

// TestStepUndoneAtCommit has the commit fail as it does by its neighbours: once, and for ever.
func TestStepUndoneAtCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for _, code := range []string{"40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			f := newStepFault(t, s, pgxHandle, t.Name())
			s.failAtCommit(t, code, 1)
			must(t, f.reach(charged))
			f.wantRuns(t, 2, "it is run again")
			f.wantReached(t, 1, charged, "E3")
		})
	}
	t.Run("for ever", func(t *testing.T) {
		f := newStepFault(t, s, pgxHandle, t.Name())
		s.failAtCommit(t, "40001", always)
		wantNotExecuted(t, f.reach(charged), "it ends some day")
		f.wantReached(t, 0, store.Checkpoint{}, "nothing was executed")
		if n := f.runs.Load(); n < 2 || n > 20 {
			t.Errorf("the step ran %d times, want a few", n)
		}
		exec(t, s.admin, `DROP TRIGGER fail ON business`)
		must(t, f.reach(charged))
		f.wantReached(t, 1, charged, "the next try")
	})
}

// TestStepRefusedAtCommit has a deferred constraint refuse: the step would be refused again, so it is not repeated.
func TestStepRefusedAtCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for name, code := range map[string]string{"check": "23514", "unique": "23505", "not null": "23502", "text": "22P02"} {
		t.Run(name, func(t *testing.T) {
			f := newStepFault(t, s, pgxHandle, t.Name())
			s.failAtCommit(t, code, always)
			wantWorkRefused(t, f.reach(charged), "the commit was refused")
			f.wantReached(t, 0, store.Checkpoint{}, "the commit was refused")
			f.wantRuns(t, 1, "it would be refused again")
		})
	}
}

// TestStepOverlooksAFailure is a step that says it succeeded in a transaction in which a statement had failed.
func TestStepOverlooksAFailure(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			f.during = func(ctx context.Context, run int64) error {
				if run == 1 {
					_ = h.run(ctx, wrongStatement) // it does not look
				}
				return nil
			}
			if err := f.reach(charged); err == nil || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("E3: got %v, want an error that says that nothing was committed", err)
			}
			f.wantReached(t, 0, store.Checkpoint{}, "nothing was committed")
			f.wantRuns(t, 1, "it is not the neighbours' doing")
			must(t, f.reach(charged))
			f.wantReached(t, 1, charged, "the next try")
		})
	}
}

// TestStepEndsItsTransaction: what a step commits by itself is without a point, and no record tells of it.
func TestStepEndsItsTransaction(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for _, h := range someHandles {
		for statement, rows := range map[string]int{
			`COMMIT`: 1, `ROLLBACK`: 0, `COMMIT AND CHAIN`: 1, `COMMIT; BEGIN; SELECT 1`: 1, `ROLLBACK; BEGIN; SELECT 1`: 0,
		} {
			for name, failure := range map[string]error{"succeeds": nil, "fails": errors.New("declined")} {
				t.Run(h.name+"/"+statement+"/"+name, func(t *testing.T) {
					f := newStepFault(t, s, h, t.Name())
					f.during = func(ctx context.Context, _ int64) error {
						must(t, h.run(ctx, statement))
						return failure
					}
					err := f.reach(charged)
					wantUnknown(t, err, "E3")
					if !errors.Is(err, store.ErrTxOwned) {
						t.Errorf("the error is %v, want one that says whose doing it was", err)
					}
					if failure != nil && errors.Is(err, failure) {
						t.Errorf("E3: the error %v is the step's own, which says that the step was undone", err)
					}
					f.wantReached(t, rows, store.Checkpoint{}, "E3: the point is not there")
					f.wantRuns(t, 1, "E3: it is not run again")
				})
			}
		}
	}
}

// TestDiscardedStatementsOfAStep discards what was prepared on the only connection, beside the steps and in
// one.
func TestDiscardedStatementsOfAStep(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	pool := openAdmin(t, s.url+"&pool_max_conns=1&default_query_exec_mode=cache_statement")
	st, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, st.Close()) })
	f := &stepFault{site: s, handle: pgxHandle, store: st, claim: takeOver(t, st, "paid", time.Minute)}
	must(t, f.reach(store.Checkpoint{Point: "first"}))
	_, err = pool.Exec(t.Context(), `DEALLOCATE ALL`)
	must(t, err)
	must(t, f.reach(charged))
	f.wantReached(t, 2, charged, "the next step takes another connection")
	f.wantRuns(t, 2, "the work has not begun where the statements were gone")
	f.during = func(ctx context.Context, run int64) error {
		if run == 3 {
			return f.handle.run(ctx, `DEALLOCATE ALL`)
		}
		return nil
	}
	shipped := store.Checkpoint{Point: "shipped", Data: []byte("s_1")}
	wantNotExecuted(t, f.reach(shipped), "the step discarded its own statements")
	f.wantReached(t, 2, charged, "nothing was committed")
	must(t, f.reach(shipped))
	f.wantReached(t, 3, shipped, "the next try")
}

// E3: others come while a step holds its transaction. It holds the lock of its key, not that of the row.

// TestHeartbeatPassesAStep: the lease is extended while the step goes on, and the point does not take that back.
func TestHeartbeatPassesAStep(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), h, "paid")
			id := f.store.RecordID(f.claim.ID)
			var extended time.Time
			f.during = func(context.Context, int64) error {
				if err := f.store.Extend(t.Context(), f.claim, time.Hour); err != nil {
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

// TestStepLosesItsRecord: another one who takes the record goes through while the step runs, and nothing of the step is
// kept.
func TestStepLosesItsRecord(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	other := s.store(t, pgxHandle, s.url)
	for name, intrude := range intrusions {
		t.Run("to "+name, func(t *testing.T) {
			f := newStepFault(t, s, pgxHandle, t.Name())
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
			f.wantRows(t, f.claim.Key, 0, "S6: its writes are undone")
			f.wantRuns(t, 1, "S6: it is not run again")
			after, _ := other.Get(t.Context(), f.claim.ID)
			if after.State != left.State || after.Attempt != left.Attempt || after.Point != left.Point {
				t.Errorf("S6: the record was %s at attempt %d and %q, and is %s at %d and %q",
					left.State, left.Attempt, left.Point, after.State, after.Attempt, after.Point)
			}
		})
	}
}

// wantLocked checks that a step does not wait for the lock, which is held when the step returns: the step is refused.
func wantLocked(t testing.TB, f *stepFault) {
	t.Helper()
	ran := f.runs.Load()
	await.Return(t, "the end of a step that cannot begin", func() {
		wantNotExecuted(t, f.reach(charged), "the lock is held")
	})
	f.wantRuns(t, ran, "E3: a step that could not begin")
}

// stalled is an operation whose owner has stopped in a step of this lease, and the operation's next attempt elsewhere.
// The owner's step continues when the test lets it, and the channel has its end.
func stalled(t *testing.T, lease time.Duration) (next *stepFault, done <-chan error, goOn func()) {
	t.Helper()
	s := newSite(t, servers.Postgres(t))
	st := s.store(t, pgxHandle, s.url)
	owner := takeOver(t, st, "paid", time.Minute)
	entered, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- st.CheckpointTx(context.Background(), owner, lease, func(ctx context.Context) (store.Checkpoint, error) {
			err := insertPgx(ctx, "paid")
			close(entered)
			<-release
			return store.Checkpoint{Point: "stale"}, err
		})
	}()
	await.Value(t, "the step", entered)
	next = &stepFault{site: s, handle: pgxHandle, store: s.store(t, pgxHandle, s.url)}
	exec(t, s.admin, `UPDATE onceward_record SET due = 1`) // the owner's lease is over
	next.claim = takeOver(t, next.store, "paid", time.Minute)
	return next, ended, func() { close(release) }
}

// TestStalledOwnerGoesOn: the next attempt's step is refused at once while the lock is held, and works when it is not.
func TestStalledOwnerGoesOn(t *testing.T) {
	t.Parallel()
	next, done, goOn := stalled(t, time.Hour) // the server does not end the step for that long
	for range 3 {
		wantLocked(t, next)
	}
	goOn()
	if err := await.Value(t, "the end of the stalled step", done); !errors.Is(err, store.ErrFenced) {
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
	nightly.Only(t, "it waits for six seconds")
	next, done, goOn := stalled(t, time.Second)
	next.insists(t, charged)
	next.wantReached(t, 1, charged, "E8: no path leaves a key locked")
	goOn()
	if err := await.Value(t, "the end of the stalled step", done); !errors.Is(err, store.ErrFenced) &&
		!errors.Is(err, store.ErrUnavailable) {
		t.Errorf("S6: the step of an owner that was put out got %v, want ErrFenced or ErrUnavailable", err)
	}
	next.wantReached(t, 1, charged, "S6: what came late")
}
