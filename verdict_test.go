package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func TestAVerdictWithoutAResponse(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusContinue, http.StatusSwitchingProtocols, 199} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			store, handler := newFaultyStore(), new(counted)
			store.reserve = func(ctx context.Context, r *onceward.Reservation) (onceward.Verdict, error) {
				v, err := store.Store.Reserve(ctx, r)
				replayOf(&v).Response = onceward.Response{Status: status}
				return v, err
			}
			h := newGuard(t, store).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
			post(h, "k", `{}`).wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
			handler.wantRuns(t, "I9", 0)
		})
	}
}

// idleTransactor grants an execution and does not call it.
type idleTransactor struct{ scriptedTransactor }

func (s *idleTransactor) Transact(ctx context.Context, r *onceward.Reservation, _ func(context.Context, onceward.Verdict) onceward.Settlement) (onceward.Verdict, error) {
	return s.Reserve(ctx, r)
}

func TestATransactorThatDoesNotCallTheWork(t *testing.T) {
	t.Parallel()
	store, handler := &idleTransactor{scriptedTransactor{Store: memory.New()}}, new(counted)
	guard := newGuard(t, store)
	h := guard.Handler(handler, onceward.Transactional())
	post(h, "k", `{}`).wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
	handler.wantRuns(t, "I9", 0)

	w := new(work)
	if _, err := guard.Do(t.Context(), someCall, w.do, onceward.Transactional()); !errors.Is(err, onceward.ErrUnreadable) {
		t.Errorf("I9, E4: %v, want ErrUnreadable", err)
	}
	w.wantRuns(t, "I9, E4", 0)
}
