package sqlite_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// claimed reserves a key that is free, or whose lease is over.
func claimed(t testing.TB, s *sqlite.Store, key string, edits ...func(*store.Reservation)) store.Claim {
	t.Helper()
	v, err := s.Reserve(t.Context(), reservation(key, edits...))
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve %q: got (%s, %v), want the right to execute", key, v.Decision, err)
	}
	return store.Claim{ID: idOf(key), Attempt: v.Record.Attempt}
}

// step is work that writes a row and reaches a point of the same name.
func step(name string) func(context.Context) (store.Checkpoint, error) {
	return func(ctx context.Context) (store.Checkpoint, error) {
		return store.Checkpoint{Point: name}, insert(ctx, name)
	}
}

func wantPoint(t testing.TB, store *sqlite.Store, key, want, rule string) {
	t.Helper()
	rec, err := store.Get(context.Background(), idOf(key))
	if err != nil || rec.Point != want {
		t.Errorf("%s: the record of %q is at %q (%v), want %q", rule, key, rec.Point, err, want)
	}
}

// TestStepThatDoesNotReturn holds the writer until its transaction is revoked. The others go on, also its own next
// attempt, and what it does later comes to nothing.
func TestStepThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	c := claimed(t, s, "key")
	release := make(chan struct{})
	var late error
	ended := overdue(t, func(bound time.Duration) (<-chan struct{}, <-chan error) {
		entered, ended := make(chan struct{}), make(chan error, 1)
		hang := func(ctx context.Context) (store.Checkpoint, error) {
			if err := insert(ctx, "row"); err != nil {
				return store.Checkpoint{}, err
			}
			close(entered)
			<-release
			late = insert(ctx, "late")
			return store.Checkpoint{Point: "late"}, nil
		}
		go func() { ended <- s.CheckpointTx(context.Background(), c, bound, hang) }()
		return entered, ended
	})
	await.Return(t, "what waits for the step", func() {
		if err := s.Extend(t.Context(), c, time.Minute); err != nil {
			t.Errorf("E2: the heartbeat of the same claim got %v", err)
		}
		transacted(t, s, reservation("other"), inserting("other"), store.DecisionExecute, "E3: the others go on")
		if err := s.CheckpointTx(t.Context(), c, time.Minute, step("row")); err != nil {
			t.Errorf("E8: the next step of the same claim got %v", err)
		}
	})
	close(release)
	err := await.Value(t, "the end of the step", ended)
	wantUnavailable(t, err, revoked, "E3: a step that held the writer for too long")
	if !errors.Is(err, store.ErrDeadline) {
		t.Errorf("E5: %v, want it to say that the deadline was passed", err)
	}
	if late == nil {
		t.Error("E3: a step whose transaction was revoked could write")
	}
	wantRows(t, s, "row", 1, "E3: only the second step is there")
	wantRows(t, s, "late", 0, "E3")
	wantPoint(t, s, "key", "row", "E3: only the second step is there")
}

// TestStepOfAShortCaller: a caller's deadline that comes before the end of the lease bounds the step, too.
func TestStepOfAShortCaller(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	c := claimed(t, s, "key")
	release := make(chan struct{})
	ended := overdue(t, func(bound time.Duration) (<-chan struct{}, <-chan error) {
		entered, ended := make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		t.Cleanup(cancel)
		hang := func(ctx context.Context) (store.Checkpoint, error) {
			if err := insert(ctx, "row"); err != nil {
				return store.Checkpoint{}, err
			}
			close(entered)
			<-release
			return store.Checkpoint{Point: "row"}, nil
		}
		go func() { ended <- s.CheckpointTx(ctx, c, 2*time.Hour, hang) }()
		return entered, ended
	})
	await.Return(t, "what waits for the step", func() {
		transacted(t, s, reservation("other"), inserting("other"), store.DecisionExecute, "E3: the others go on")
	})
	close(release)
	wantUnavailable(t, await.Value(t, "the end of the step", ended), revoked, "E3: a step that outlasted its caller")
	wantRows(t, s, "row", 0, "E3")
	wantPoint(t, s, "key", "", "E3")
}

// TestStatementOfAStepThatDoesNotEnd: a statement ends with the time of its step, which can say so.
func TestStatementOfAStepThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	c := claimed(t, s, "key")
	await.Return(t, "an endless query", func() {
		err := s.CheckpointTx(t.Context(), c, short, func(ctx context.Context) (store.Checkpoint, error) {
			const endless = `WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`
			return store.Checkpoint{Point: "row"}, onceward.Tx(ctx).QueryRowContext(ctx, endless).Scan(new(int))
		})
		if err == nil {
			t.Error("an endless query ended")
		}
	})
	wantPoint(t, s, "key", "", "E3")
	if err := s.CheckpointTx(t.Context(), c, time.Minute, step("row")); err != nil {
		t.Errorf("E3: the next step got %v", err)
	}
	wantRows(t, s, "row", 1, "E3")
}

// TestStepBreaksADeferredKey: the commit would fail by it for the whole group, so the step alone is undone.
func TestStepBreaksADeferredKey(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	exec(t, s, `CREATE TABLE parent (number INTEGER PRIMARY KEY)`)
	exec(t, s, `CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	c := claimed(t, s, "key")
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO child VALUES (1)`)
		return store.Checkpoint{Point: "row"}, errors.Join(err, insert(ctx, "row"))
	})
	wantWorkRefused(t, err, "deferred foreign key", "E3: a step that breaks a deferred key")
	wantRows(t, s, "row", 0, "E3")
	wantPoint(t, s, "key", "", "E3")
}

// TestStepOfAnotherProcess has two stores share a file: a claim that was taken over in one is fenced in the other.
func TestStepOfAnotherProcess(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := openBusiness(t, path, sqlite.WithClock(func() time.Time { return clock }))
	taker := openBusiness(t, path, sqlite.WithClock(func() time.Time { return clock.Add(time.Hour) }))
	resumable := func(r *store.Reservation) { r.OnLost = store.LostResume }
	stale := claimed(t, old, "key", resumable)
	if err := old.CheckpointTx(t.Context(), stale, time.Minute, step("first")); err != nil {
		t.Fatal(err)
	}
	current := claimed(t, taker, "key", resumable)
	if err := taker.CheckpointTx(t.Context(), current, time.Minute, step("second")); err != nil {
		t.Fatal(err)
	}
	err := old.CheckpointTx(t.Context(), stale, time.Minute, func(context.Context) (store.Checkpoint, error) {
		t.Error("S6: the step of an owner that was replaced was executed")
		return store.Checkpoint{}, nil
	})
	if !errors.Is(err, store.ErrFenced) {
		t.Errorf("S6: got %v, want ErrFenced", err)
	}
	wantPoint(t, old, "key", "second", "S6")
}

// TestStepOfAClosedStore is refused, and not executed.
func TestStepOfAClosedStore(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	c := claimed(t, s, "key")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := s.CheckpointTx(t.Context(), c, time.Minute, func(context.Context) (store.Checkpoint, error) {
		t.Error("a step was executed on a closed store")
		return store.Checkpoint{}, nil
	})
	wantUnavailable(t, err, "", "a closed store")
}
