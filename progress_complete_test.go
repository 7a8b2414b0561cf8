package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// TestCompleteThatFailsOnARouteThatResumes: a later attempt goes on from the recovery point and makes the same answer.
func TestCompleteThatFailsOnARouteThatResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = brokenComplete
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if point, _ := op.Point(); point == "" {
				if err := op.Checkpoint(store.Checkpoint{Point: "charged"}); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "in-progress")
		if took := time.Since(started); took > 16*time.Second {
			t.Errorf("E7: it was given up after %s, want about 15 s", took)
		}
		rec := recordOf(t, s, "k")
		if rec.State != store.StateInProgress || time.Until(rec.LeaseUntil) > time.Millisecond {
			t.Errorf("E3: the record is %s until %s, want one that can be taken over", rec.State, rec.LeaseUntil)
		}
		s.complete = nil
		time.Sleep(time.Millisecond)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, true)
	})
}

// TestCompleteThatFailsWithTheWholeStore: its caller does not wait twice as long, and the lease ends by itself.
func TestCompleteThatFailsWithTheWholeStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = brokenComplete
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		h := newGuard(t, s).Handler(handler, resumable()...)
		started := time.Now()
		post(h, "k", `{}`).wantProblem(t, "E7", http.StatusConflict, "in-progress")
		if took := time.Since(started); took > 16*time.Second {
			t.Errorf("E7: it was given up after %s, want about 15 s", took)
		}
		s.complete, s.extend = nil, nil
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "E3", http.StatusCreated, false)
		handler.wantRuns(t, "E3", 2)
	})
}

// TestCompleteWhoseRepliesAreLost: the answer is stored, and is found when the operation is suspended for want of one.
func TestCompleteWhoseRepliesAreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		s.complete = func(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
			_, err := s.Store.Complete(ctx, c, done)
			return time.Time{}, errors.Join(err, errDown)
		}
		h := newGuard(t, s).Handler(handler, resumable()...)
		post(h, "k", `{}`).want(t, "S6", http.StatusCreated, true)
		wantState(t, "S6", s, "k", store.StateCompleted)
		handler.wantRuns(t, "S6", 1)
	})
}

// TestCompleteThatIsRefusedForGood: a later attempt would make the same answer and be refused again, forever.
func TestCompleteThatIsRefusedForGood(t *testing.T) {
	t.Parallel()
	s, handler := newFaultyStore(), new(counted)
	s.complete = func(context.Context, store.Claim, *store.Completion) (time.Time, error) {
		return time.Time{}, fmt.Errorf("%w: the store cannot hold such an answer", store.ErrInvalidEvent)
	}
	h := newGuard(t, s).Handler(handler, resumable()...)
	post(h, "k", `{}`).wantProblem(t, "E7", http.StatusInternalServerError, "outcome-unknown")
	wantState(t, "E7", s, "k", store.StateUnknown)
}
