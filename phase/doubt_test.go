package phase_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// TestNotExecutedSaysNothingOfAnEarlierCall: a call of which nobody knows whether it was made stays one, although its
// repetition did nothing for certain.
func TestNotExecutedSaysNothingOfAnEarlierCall(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		answers := []error{errDown, onceward.NotExecuted(errDown), nil}
		step := b.call("charge", func(ctx context.Context, key string, o *order) error {
			err := answers[0]
			answers = answers[1:]
			if err != nil {
				return err
			}
			return charge(ctx, key, o)
		})
		o := b.define(b.local("seat", takeSeat), step.Repeat().LookUp(func(context.Context, string, *order) error {
			b.did("look")
			return phase.ErrNotFound
		}))
		for _, point := range []string{"charge (begun)", "charge (begun)"} {
			b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
			rec := b.record("k")
			if rec.Point != point {
				t.Errorf("the recovery point is %q, want %q", rec.Point, point)
			}
			b.await(rec.LeaseUntil)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge look charge look charge")
	})
}

// TestNotExecutedTakesBackItsOwnIntent: whoever made the first call and knows that it did nothing leaves no doubt
// behind.
func TestNotExecutedTakesBackItsOwnIntent(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *order) error {
			if failing {
				failing = false
				return onceward.NotExecuted(errDown)
			}
			return charge(ctx, key, o)
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if rec := b.record("k"); rec.Point != "seat" {
			t.Errorf("the recovery point is %q, want that before the call", rec.Point)
		}
		b.await(b.record("k").LeaseUntil)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
	})
}

// doubtfulStore ends its first local step in an error of the store, before or after it was committed.
type doubtfulStore struct {
	*sqlite.Store
	commits bool
	err     error
}

// CheckpointTx implements [store.TxCheckpointer].
func (s *doubtfulStore) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error)) error {
	err := s.err
	if s.err = nil; err == nil {
		return s.Store.CheckpointTx(ctx, c, lease, work)
	}
	if s.commits {
		if err := s.Store.CheckpointTx(ctx, c, lease, work); err != nil {
			return err
		}
	}
	return err
}

// TestTheFirstStepIsInDoubt: what may have been committed, or may be in other hands, is not called undone: the record
// stays in progress, and the next attempt finds out.
func TestTheFirstStepIsInDoubt(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("%w: the reply to the commit was lost", store.ErrOutcomeUnknown)
	for name, c := range map[string]struct {
		commits bool
		err     error
		trace   string
	}{
		"committed":     {true, lost, "seat"},
		"not committed": {false, lost, "seat"},
		"fenced":        {false, &store.FencedError{Op: "checkpoint"}, "seat"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "phase.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = inner.Close() })
			b := newBench(t, &doubtfulStore{Store: inner, commits: c.commits, err: c.err})
			o := b.define(b.local("seat", takeSeat))
			b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
			rec := b.record("k")
			if rec.State != store.StateInProgress {
				t.Errorf("the record is %s: what expires is forgotten, and it may have been executed", rec.State)
			}
			b.await(rec.LeaseUntil)
			b.want(b.post(o, "k"), http.StatusCreated, "12A")
			b.wantTrace(c.trace)
		})
	}
}

// TestAStepThatCommitsByItself: its writes stay without their recovery point, and would come again with every attempt.
func TestAStepThatCommitsByItself(t *testing.T) {
	t.Parallel()
	inner, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "phase.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	b := newBench(t, &doubtfulStore{Store: inner, err: fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, store.ErrTxOwned)})
	o := b.define(b.local("seat", takeSeat))
	b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
	b.want(b.post(o, "k"), http.StatusConflict, "outcome-unknown")
	b.wantTrace("")
}

// TestAStepPastTheDeadline: a call is not begun for which no time is left, because it would be in doubt for nothing.
func TestAStepPastTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New())
		o := phase.Must(phase.New(phase.Definition[order]{
			Name: "POST /orders",
			Steps: []phase.Step[order]{
				b.local("seat", func(ctx context.Context, o *order) error {
					time.Sleep(10500 * time.Millisecond)
					return takeSeat(ctx, o)
				}),
				b.call("charge", func(ctx context.Context, key string, o *order) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return charge(ctx, key, o)
				}),
			},
			Answer:  func(o *order) phase.Answer { return phase.JSON(http.StatusCreated, o) },
			Options: []onceward.Option{onceward.Lease(3 * time.Second), onceward.Deadline(10 * time.Second)},
		}))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		if rec := b.record("k"); rec.Point != "seat" {
			t.Errorf("the recovery point is %q, want that behind the last step", rec.Point)
		}
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge")
	})
}

// slowStore takes longer than a lease to record an intent, and loses the heartbeats meanwhile.
type slowStore struct {
	deafStore
	slow bool
}

// Checkpoint implements [store.Store].
func (s *slowStore) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	if s.slow && strings.HasSuffix(p.Point, "(begun)") {
		s.slow = false
		s.deaf.Store(true)
		time.Sleep(3 * time.Second)
		defer s.deaf.Store(false)
	}
	return s.Store.Checkpoint(ctx, c, p)
}

// TestALeaseThatEndsBeforeTheCall: an owner that has recorded its intent and may not call any more takes the intent
// back.
func TestALeaseThatEndsBeforeTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &slowStore{deafStore: deafStore{Store: memory.New()}, slow: true})
		o := b.define(b.local("seat", takeSeat), b.call("charge", charge))
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.wantTrace("seat")
		if rec := b.record("k"); rec.Point != "seat" {
			t.Errorf("the recovery point is %q, want that before the call", rec.Point)
		}
		time.Sleep(time.Minute)
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge")
	})
}

// TestAFailedStepChangesNothing: what it did to the data before it failed is not there in the next try.
func TestAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		tries := 0
		spoil := func(o *order) error {
			tries++
			if o.Item != "a book" {
				t.Errorf("try %d finds %q", tries, o.Item)
			}
			if tries%2 == 1 {
				o.Item = "spoiled"
				return onceward.NotExecuted(errDown)
			}
			return nil
		}
		o := b.define(
			b.local("seat", takeSeat),
			b.local("check", func(_ context.Context, o *order) error { return spoil(o) }),
			b.call("charge", func(_ context.Context, _ string, o *order) error { return spoil(o) }),
		)
		b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
		b.resume(o)
		b.want(b.post(o, "k"), http.StatusCreated, "a book")
		b.wantTrace("seat check check charge charge")
	})
}

// TestACallThatHasBecomeLocal: the definition no longer says what an intent stands for.
func TestACallThatHasBecomeLocal(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := func(context.Context, string, *order) error { return errDown }
		b.want(b.post(b.define(b.local("seat", takeSeat), b.call("charge", failing).Repeat()), "k"), http.StatusConflict, "in-progress")
		b.await(b.record("k").LeaseUntil)
		changed := b.define(b.local("seat", takeSeat), b.local("charge", confirm))
		b.wantLeftAlone(changed, "charge (a call)")
		b.wantTrace("seat charge")
	})
}

// TestAStepThatCommits: on PostgreSQL a step can end its transaction behind everybody's back. It would do so again, so
// it is not tried again.
func TestAStepThatCommits(t *testing.T) {
	t.Parallel()
	store, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b := newBench(t, store)
	o := b.define(b.local("seat", func(ctx context.Context, _ *order) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `COMMIT`)
		return err
	}))
	b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
	b.want(b.post(o, "k"), http.StatusConflict, "outcome-unknown")
	b.wantTrace("seat")
}
