package unknown_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// TestNotExecutedSaysNothingOfAnEarlierCall: a call of which it is not known whether it was made stays one, although
// its repetition did nothing for certain.
func TestNotExecutedSaysNothingOfAnEarlierCall(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		answers := []error{errDown, onceward.NotExecuted(errDown), nil}
		step := b.call("charge", func(ctx context.Context, key string, o *ticket) error {
			err := answers[0]
			answers = answers[1:]
			if err != nil {
				return err
			}
			return charge(ctx, key, o)
		})
		o := b.define(b.local("seat", takeSeat), step.Repeat().LookUp(func(context.Context, string, *ticket) error {
			b.did("look")
			return phase.ErrNotFound
		}))
		for _, point := range []string{"charge (begun)", "charge (begun)"} {
			b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
			rec := b.record("k")
			if rec.Point != point {
				t.Errorf("the recovery point is %q, want %q", rec.Point, point)
			}
			b.leapTo(rec.LeaseUntil)
		}
		b.want(b.post(o, "k"), http.StatusCreated, "ch_1")
		b.wantTrace("seat charge look charge look charge")
	})
}

// TestNotExecutedTakesBackItsOwnIntent: an attempt that made the first call and knows that it did nothing leaves no
// doubt behind.
func TestNotExecutedTakesBackItsOwnIntent(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		failing := true
		o := b.define(b.local("seat", takeSeat), b.call("charge", func(ctx context.Context, key string, o *ticket) error {
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
		b.leapTo(b.record("k").LeaseUntil)
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
func (s *doubtfulStore) CheckpointTx(
	ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
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
			inner, clock := openPhases(t)
			b := newBench(t, &doubtfulStore{Store: inner, commits: c.commits, err: c.err}, clock)
			o := b.define(b.local("seat", takeSeat))
			b.want(b.post(o, "k"), http.StatusConflict, "in-progress")
			rec := b.record("k")
			if rec.State != store.StateInProgress {
				t.Errorf("the record is %s: what expires is forgotten, and it may have been executed", rec.State)
			}
			b.leapTo(rec.LeaseUntil)
			b.want(b.post(o, "k"), http.StatusCreated, "12A")
			b.wantTrace(c.trace)
		})
	}
}

// TestAStepThatCommitsByItself: its writes stay without their recovery point, and would come again with every attempt.
func TestAStepThatCommitsByItself(t *testing.T) {
	t.Parallel()
	inner, clock := openPhases(t)
	b := newBench(t, &doubtfulStore{
		Store: inner, err: fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, store.ErrTxOwned),
	}, clock)
	o := b.define(b.local("seat", takeSeat))
	b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
	b.want(b.post(o, "k"), http.StatusConflict, "outcome-unknown")
	b.wantTrace("")
}

// TestAFailedStepChangesNothing: what it did to the data before it failed is not there in the next try.
func TestAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, b *bench) {
		attempts := 0
		spoil := func(o *ticket) error {
			attempts++
			if o.Item != "a book" {
				t.Errorf("try %d finds %q", attempts, o.Item)
			}
			if attempts%2 == 1 {
				o.Item = "spoiled"
				return onceward.NotExecuted(errDown)
			}
			return nil
		}
		o := b.define(
			b.local("seat", takeSeat),
			b.local("check", func(_ context.Context, o *ticket) error { return spoil(o) }),
			b.call("charge", func(_ context.Context, _ string, o *ticket) error { return spoil(o) }),
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
		failing := func(context.Context, string, *ticket) error { return errDown }
		b.want(b.post(b.define(b.local("seat", takeSeat), b.call("charge", failing).Repeat()), "k"), http.StatusConflict,
			"in-progress")
		b.leapTo(b.record("k").LeaseUntil)
		changed := b.define(b.local("seat", takeSeat), b.local("charge", confirm))
		b.wantLeftAlone(changed, "charge (a call)")
		b.wantTrace("seat charge")
	})
}

// TestAStepThatCommits: on PostgreSQL a step can end its transaction without the store knowing. It would do so again,
// so it is not tried again, nor is an answer given that stands for a step which was undone.
func TestAStepThatCommits(t *testing.T) {
	t.Parallel()
	taken := phase.Finish(phase.Answer{Status: http.StatusConflict, Body: []byte("the seat is taken")})
	for name, end := range map[string]error{"goes on": nil, "finishes": taken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := postgres.Open(t.Context(), servers.Postgres(t).SchemaURL(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			b := newBench(t, store, new(leapingClock)) // which is not moved
			o := b.define(b.local("seat", func(ctx context.Context, _ *ticket) error {
				_, err := postgres.Tx(ctx).Exec(ctx, `COMMIT`)
				return errors.Join(err, end)
			}))
			b.want(b.post(o, "k"), http.StatusInternalServerError, "outcome-unknown")
			b.want(b.post(o, "k"), http.StatusConflict, "outcome-unknown")
			b.wantTrace("seat")
		})
	}
}
