package suite

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// testErrors: the error of a handler that failed is in the log, and it is the reason of an unknown outcome. The client
// gets what the framework makes of it.
func testErrors(s *service, mode onceward.Option) {
	const reason = "the bank did not answer"
	s.serveWork(func(context.Context, Payment) Reply {
		return Reply{Status: http.StatusInternalServerError, Body: reason}
	}, mode)
	if got := s.call(keyed("k")); got.Status != http.StatusInternalServerError {
		s.Errorf("a failure is answered by %s", got)
	}
	if log := s.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, reason) {
		s.Errorf("the log has no error %q:\n%s", reason, log)
	}
	rec, err := s.store.Get(s.Context(), store.ID{Scope: "alice", Key: "k"})
	if err == nil && rec.State == store.StateUnknown && !strings.Contains(rec.LastError, reason) {
		s.Errorf("the reason is %q, want %q in it", rec.LastError, reason)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.Error(err)
	}
}

// testLateErrors: an error that a handler returns after it has answered is a failure like any other, is in the log, and
// goes on to the framework.
func testLateErrors(s *service) {
	const reason = "the answer broke off"
	work := func(of *service) Work {
		return func(ctx context.Context, p Payment) Reply {
			reply := of.pay(ctx, p)
			reply.Err = errors.New(reason)
			return reply
		}
	}
	s.serveWork(work(s), onceward.Transactional())
	for range 2 {
		got := s.call(keyed("k"))
		s.wantProblem("transactional", got, http.StatusInternalServerError, "handler-failed")
		if !got.Retryable {
			s.Errorf("transactional: got %s, want retryable: the work was undone", got)
		}
	}
	s.wantRuns("transactional", 2)
	s.wantPayments("transactional", 0)
	if log := s.log.String(); strings.Count(log, reason) != 2 {
		s.Errorf("the log has the error %d times, want 2:\n%s", strings.Count(log, reason), log)
	}

	unknown := newService(s.T, s.adapter)
	unknown.serveWork(work(unknown), reserved)
	unknown.wantProblem("unknown", unknown.call(keyed("k")), http.StatusInternalServerError, "outcome-unknown")
	rec, err := unknown.store.Get(s.Context(), store.ID{Scope: "alice", Key: "k"})
	s.must(err)
	if rec.State != store.StateUnknown || rec.LastError != reason {
		s.Errorf("the record is %s by %q, want unknown by %q", rec.State, rec.LastError, reason)
	}

	kept := newService(s.T, s.adapter)
	kept.serveWork(work(kept), onceward.Reserved(onceward.FailureStore))
	for _, replayed := range []bool{false, true} {
		got := kept.call(keyed("k"))
		if got.Status != http.StatusInternalServerError || got.Code != "handler-failed" || got.Replayed != replayed {
			s.Errorf("store: got %s, want a failure, replayed %t", got, replayed)
		}
	}
}
