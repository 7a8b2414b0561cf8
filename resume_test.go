package onceward_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

func TestAResumedOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		s.extend = func(context.Context, store.Claim, time.Duration) error { return errDown }
		handler := &counted{}
		handler.then = func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if handler.runs.Load() == 1 {
				claim := store.Claim{ID: aliceID("k"), Attempt: op.Attempt()}
				if err := s.Checkpoint(r.Context(), claim, store.Checkpoint{Point: "charged", Data: []byte("ch_1")}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute) // as a process that was stopped
				w.WriteHeader(http.StatusAccepted)
				return
			}
			point, data := op.Point()
			if !op.Resumed() || point != "charged" || string(data) != "ch_1" {
				t.Errorf("section 4: resumed %t at %q with %q, want at charged with ch_1", op.Resumed(), point, data)
			}
			w.WriteHeader(http.StatusCreated)
		}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(store.LostResume))
		first := make(chan answer)
		go func() { first <- post(h, "k", `{}`) }()
		time.Sleep(45 * time.Second)
		post(h, "k", `{}`).want(t, "section 4: resume", http.StatusCreated, false)
		late := <-first
		late.want(t, "S6: the first owner sends the stored answer", http.StatusCreated, true)
		handler.wantRuns(t, "section 4", 2)
	})
}

// loseOwner leaves a record behind whose owner was lost, and whose lease is over.
func loseOwner(t *testing.T, s *faultyStore) {
	t.Helper()
	handler := &counted{then: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}
	s.abandon = func(context.Context, store.Claim, string) error { return errDown } // as if the process had died
	h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(store.LostResume))
	panicOf(func() { post(h, "k", `{}`) })
	s.abandon = nil
	time.Sleep(31 * time.Second)
	wantState(t, "section 4", s, "k", store.StateInProgress)
}

func TestAResumedAttemptIsNotReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFaultyStore()
		loseOwner(t, s)
		handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
			op := onceward.FromContext(r.Context())
			if !op.Resumed() {
				t.Error("section 4: the attempt does not know that it is resumed")
			}
			op.NotExecuted() // it did nothing, but the attempt before it may have
			w.WriteHeader(http.StatusServiceUnavailable)
		}}
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureRetry), onceward.OnLost(store.LostResume))
		post(h, "k", `{}`).wantProblem(t, "section 4: release only where it is proven that nothing was done", http.StatusInternalServerError, "outcome-unknown")
		wantState(t, "section 4", s, "k", store.StateUnknown)
		handler.wantRuns(t, "section 4", 1)
	})
}

func TestAResumedGrantThatNobodyTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, handler := newFaultyStore(), new(counted)
		loseOwner(t, s)
		h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.OnLost(store.LostResume))
		ctx, leave := context.WithCancel(context.Background())
		leave()
		post(h, "k", `{}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
		handler.wantRuns(t, "S9", 0)
		wantState(t, "S9: its past may have effects, so it is not released", s, "k", store.StateInProgress)
		time.Sleep(31 * time.Second)
		post(h, "k", `{}`).want(t, "section 4: the next attempt resumes", http.StatusCreated, false)
		handler.wantRuns(t, "section 4", 1)
	})
}

func TestARouteThatDoesNotResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, handler := newFaultyStore(), new(counted)
		loseOwner(t, store)
		h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
		post(h, "k", `{}`).wantProblem(t, "D5: both must say resume", http.StatusConflict, "outcome-unknown")
		handler.wantRuns(t, "D5", 0)
	})
}
