package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// groupStep is one step in a group.
type groupStep struct {
	claim store.Claim
	runs  atomic.Int64
	err   error
}

func newGroupStep(t testing.TB, s *Store, key string) *groupStep {
	t.Helper()
	v, err := s.Reserve(t.Context(), insideReservation(key))
	if err != nil || v.Decision != store.DecisionExecute {
		t.Fatalf("reserve %q: got (%s, %v)", key, v.Decision, err)
	}
	return &groupStep{claim: store.Claim{ID: insideID(key), Attempt: v.Record.Attempt}}
}

// do writes a row named like the key, and ends as it is told.
func (g *groupStep) do(ctx context.Context, s *Store, lease time.Duration, end func(ctx context.Context) error) {
	g.err = s.CheckpointTx(ctx, g.claim, lease, func(ctx context.Context) (store.Checkpoint, error) {
		g.runs.Add(1)
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES (?)`, g.claim.Key)
		return store.Checkpoint{Point: "reached"}, errors.Join(err, end(ctx))
	})
}

// want checks that a step is there as a whole, or not at all.
func (g *groupStep) want(t testing.TB, s *Store, done bool, runs int64, rule string) {
	t.Helper()
	rec, err := s.Get(t.Context(), g.claim.ID)
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, s, g.claim.Key)
	if (g.err == nil) != done || (rows == 1) != done || (rec.Point == "reached") != done || rows > 1 {
		t.Errorf("%s: the step of %q got %v, with %d rows and at %q; want it done %t", rule, g.claim.Key, g.err, rows, rec.Point, done)
	}
	if got := g.runs.Load(); got != runs {
		t.Errorf("%s: the step of %q ran %d times, want %d", rule, g.claim.Key, got, runs)
	}
}

func succeed(context.Context) error { return nil }

// runSteps queues steps in this order, and then lets the writer run them as one group.
func runSteps(t testing.TB, s *Store, steps []*groupStep, end func(ctx context.Context, g *groupStep) error) {
	t.Helper()
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	for i, g := range steps {
		group.Go(func() {
			g.do(context.Background(), s, time.Minute, func(ctx context.Context) error { return end(ctx, g) })
		})
		awaitQueue(t, s, i+1)
	}
	letGo()
	group.Wait()
}

// TestStepsInAGroup: one that fails is undone alone, and one that is refused does not run.
func TestStepsInAGroup(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	first, failing, stale, last := newGroupStep(t, s, "first"), newGroupStep(t, s, "failing"), newGroupStep(t, s, "stale"), newGroupStep(t, s, "last")
	stale.claim.Attempt++
	declined := errors.New("declined")
	runSteps(t, s, []*groupStep{first, failing, stale, last}, func(_ context.Context, g *groupStep) error {
		if g == failing {
			return declined
		}
		return nil
	})
	first.want(t, s, true, 1, "E3")
	failing.want(t, s, false, 1, "E3")
	stale.want(t, s, false, 0, "S6: it is refused before its work")
	last.want(t, s, true, 1, "E3: after one that failed and one that was refused")
	if !errors.Is(failing.err, declined) || !errors.Is(stale.err, store.ErrFenced) {
		t.Errorf("E3: the failing step got %v, the stale one %v", failing.err, stale.err)
	}
}

// TestStepBesideOneThatSpoils: the group loses its transaction by one of its steps. The others are run again, each by
// itself, and count once; what their first run said does not count. A writer that is slow may cut the group before the one
// that spoils it, so groups are run until one was not.
func TestStepBesideOneThatSpoils(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for round := range 50 {
		if stepsBesideOneThatSpoils(t, s, fmt.Sprint(round)) {
			return
		}
	}
	t.Error("no group was spoiled")
}

func stepsBesideOneThatSpoils(t *testing.T, s *Store, round string) (again bool) {
	before, fickle, spoiling := newGroupStep(t, s, "before"+round), newGroupStep(t, s, "fickle"+round), newGroupStep(t, s, "spoiling"+round)
	runSteps(t, s, []*groupStep{before, fickle, spoiling}, func(ctx context.Context, g *groupStep) error {
		switch {
		case g == spoiling:
			_, err := onceward.Tx(ctx).Exec(`INSERT OR ROLLBACK INTO business VALUES (NULL)`)
			return err
		case g == fickle && g.runs.Load() == 1:
			return errors.New("not yet")
		default:
			return nil
		}
	})
	again = before.runs.Load() == 2 && fickle.runs.Load() == 2
	before.want(t, s, true, before.runs.Load(), "E3: after a neighbour lost the transaction")
	fickle.want(t, s, fickle.runs.Load() == 2, fickle.runs.Load(), "E3: the last run counts")
	spoiling.want(t, s, false, 1, "E3: what was undone is not repeated by itself")
	if !errors.Is(spoiling.err, store.ErrUnavailable) {
		t.Errorf("E3: the step whose transaction SQLite undid got %v, want ErrUnavailable", spoiling.err)
	}
	if n := max(before.runs.Load(), fickle.runs.Load()); n > 2 {
		t.Errorf("E3: a neighbour ran %d times", n)
	}
	return again
}

// TestStepThatPanicsBesideOthers: its goroutine is gone when the group has to be run again.
func TestStepThatPanicsBesideOthers(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	panicking, other := newGroupStep(t, s, "panicking"), newGroupStep(t, s, "other")
	letGo := holdWriter(t, s)
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		panicking.do(context.Background(), s, time.Minute, func(context.Context) error { panic("lost") })
	}()
	awaitQueue(t, s, 1)
	var group sync.WaitGroup
	group.Go(func() { other.do(context.Background(), s, time.Minute, succeed) })
	awaitQueue(t, s, 2)
	letGo()
	group.Wait()
	if got := <-panicked; got != "lost" {
		t.Errorf("E3: the panic came out as %v", got)
	}
	other.want(t, s, true, 1, "E3: beside a step that panicked")
	panicking.err = errors.New("panicked")
	panicking.want(t, s, false, 1, "E3: a step that panicked")
}

// TestStepGivenUpInTheQueue: who gives up before its turn is not executed.
func TestStepGivenUpInTheQueue(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	g := newGroupStep(t, s, "key")
	ctx, cancel := context.WithCancel(t.Context())
	letGo := holdWriter(t, s)
	var group sync.WaitGroup
	group.Go(func() { g.do(ctx, s, time.Minute, succeed) })
	awaitQueue(t, s, 1)
	cancel()
	group.Wait()
	letGo()
	if !errors.Is(g.err, store.ErrUnavailable) || !errors.Is(g.err, context.Canceled) {
		t.Errorf("who gave up got %v", g.err)
	}
	g.want(t, s, false, 0, "E6")
}
