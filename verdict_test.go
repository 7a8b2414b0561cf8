package onceward_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func TestAVerdictWithoutAResponse(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusContinue, http.StatusSwitchingProtocols, 199} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s, handler := newFaultyStore(), new(counted)
			s.reserve = func(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
				v, err := s.Store.Reserve(ctx, r)
				replayOf(&v).Response = store.Response{Status: status}
				return v, err
			}
			h := newGuard(t, s).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
			post(h, "k", `{}`).wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
			handler.wantRuns(t, "I9", 0)
		})
	}
}

// idleTransactor grants an execution and does not call it.
type idleTransactor struct{ scriptedTransactor }

func (s *idleTransactor) Transact(ctx context.Context, r *store.Reservation, _ func(context.Context, store.Verdict) store.Settlement) (store.Verdict, error) {
	return s.Reserve(ctx, r)
}

func TestATransactorThatDoesNotCallTheWork(t *testing.T) {
	t.Parallel()
	s, handler := &idleTransactor{scriptedTransactor{Store: memory.New()}}, new(counted)
	guard := newGuard(t, s)
	h := guard.Handler(handler, onceward.Transactional())
	post(h, "k", `{}`).wantProblem(t, "I9: assert and refuse", http.StatusInternalServerError, "record-unreadable")
	handler.wantRuns(t, "I9", 0)

	w := new(work)
	if _, err := guard.Do(t.Context(), someCall, w.do, onceward.Transactional()); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("I9, E4: %v, want ErrUnreadable", err)
	}
	w.wantRuns(t, "I9, E4", 0)
}
