package onceward_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// TestProtectedTwice: the inner protection would find the operation in progress, and the outer one would store that as
// its final answer.
func TestProtectedTwice(t *testing.T) {
	t.Parallel()
	t.Run("handler", func(t *testing.T) {
		t.Parallel()
		guard, handler := newGuard(t, memory.New()), new(counted)
		h := guard.Handler(guard.Handler(handler, reserved), onceward.Reserved(onceward.FailureRetry))
		for range 2 {
			post(h, "k", `{}`).wantProblem(t, "A1", http.StatusInternalServerError, "protected-twice")
		}
		handler.wantRuns(t, "A1", 0)
	})
	t.Run("function", func(t *testing.T) {
		t.Parallel()
		guard := newGuard(t, memory.New())
		call := onceward.Call{Scope: "s", Key: "k", Operation: "o"}
		_, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			_, err := guard.Do(ctx, call, func(context.Context) ([]byte, error) {
				t.Error("E1: the operation ran inside of itself")
				return nil, nil
			}, onceward.Reserved(onceward.FailureRetry))
			return nil, err
		}, onceward.Reserved(onceward.FailureRetry))
		if !errors.Is(err, onceward.ErrMisconfigured) {
			t.Errorf("E1: got %v; want ErrMisconfigured", err)
		}
	})
}

// TestAnInnerServiceThatIsNotReady: a handler passes on the answer of a service that is protected too. If that service
// answers that the operation is in progress, or unknown, a retry gets the answer that follows.
func TestAnInnerServiceThatIsNotReady(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		onFailure onceward.Failure
		status    int // of the retry
	}{
		"retry":   {onceward.FailureRetry, http.StatusCreated},
		"store":   {onceward.FailureStore, http.StatusConflict},
		"unknown": {onceward.FailureUnknown, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready, handler := make(chan struct{}), new(counted)
			began := make(chan struct{})
			handler.then = func(w http.ResponseWriter, _ *http.Request) {
				close(began)
				<-ready
				w.WriteHeader(http.StatusCreated)
			}
			inner := newGuard(t, memory.New()).Handler(handler, reserved)
			outer := newGuard(t, memory.New()).Handler(inner, onceward.Reserved(test.onFailure))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				post(inner, "k", `{}`)
			}()
			<-began
			first := post(outer, "k", `{}`)
			first.wantProblem(t, "E5", http.StatusConflict, "in-progress")
			if got := first.header.Get("Idempotency-Outcome"); got != "" {
				t.Errorf("E5: the outcome is %q, but the inner service is at work", got)
			}
			close(ready)
			<-ended
			a := post(outer, "k", `{}`)
			if a.status != test.status {
				t.Errorf("E5: a retry gets %d %s; want %d", a.status, a.body, test.status)
			}
			if test.status == http.StatusConflict {
				a.wantProblem(t, "E5", http.StatusConflict, "outcome-unknown")
			}
			handler.wantRuns(t, "E1", 1)
		})
	}
}

// TestAnInnerServiceThatLostItsOutcome: its answer in the request itself is a 500, which no route stores.
func TestAnInnerServiceThatLostItsOutcome(t *testing.T) {
	t.Parallel()
	inner := newGuard(t, memory.New()).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Unknown()
	}), reserved)
	outer := newGuard(t, memory.New()).Handler(inner, onceward.Reserved(onceward.FailureStore))
	post(outer, "k", `{}`).wantProblem(t, "E5", http.StatusInternalServerError, "outcome-unknown")
	post(outer, "k", `{}`).wantProblem(t, "E5", http.StatusConflict, "outcome-unknown")
}
