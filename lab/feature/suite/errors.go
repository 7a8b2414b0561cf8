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

// testEnvelope: an error that a handler returns is a failure, and in the log, also if the framework answers the error with
// a success: nothing is committed or stored for it.
func testEnvelope(s *service) {
	const reason = "the second statement failed"
	s.adapter.Serve = s.adapter.Envelope
	serve := func(s *service, mode onceward.Option) {
		s.serveWork(func(ctx context.Context, p Payment) Reply {
			if err := s.write(ctx, "undone", p); err != nil {
				s.Error(err)
			}
			return Reply{Status: http.StatusInternalServerError, Body: reason}
		}, mode)
	}
	serve(s, onceward.Transactional())
	for range 2 {
		s.wantProblem("transactional", s.call(keyed("k")), http.StatusInternalServerError, "handler-failed")
	}
	s.wantRuns("transactional", 2)
	s.wantPayments("transactional", 0)
	if log := s.log.String(); strings.Count(log, reason) != 2 {
		s.Errorf("the log has the error %d times, want 2:\n%s", strings.Count(log, reason), log)
	}

	unknown := newService(s.T, s.adapter)
	serve(unknown, reserved)
	unknown.wantProblem("reserved", unknown.call(keyed("k")), http.StatusInternalServerError, "outcome-unknown")
	unknown.wantUnknown("reserved, again", unknown.call(keyed("k")))
	unknown.wantRuns("reserved", 1)
	rec, err := unknown.store.Get(s.Context(), store.ID{Scope: "alice", Key: "k"})
	s.must(err)
	if !strings.Contains(rec.LastError, reason) {
		s.Errorf("the reason is %q, want %q in it", rec.LastError, reason)
	}
}
