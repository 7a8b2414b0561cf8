package suite

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// replies is a handler that writes, and then replies with one status.
func (s *service) replies(status int) Work {
	return func(ctx context.Context, p Payment) Reply {
		if err := s.write(ctx, "payment of run "+strconv.FormatInt(s.runs.Load(), 10), p); err != nil {
			return Reply{Status: http.StatusTeapot, Body: err.Error()}
		}
		return Reply{Status: status, Body: "run " + strconv.FormatInt(s.runs.Load(), 10)}
	}
}

// says is a handler that says something about its attempt before it goes on.
func says(word func(*onceward.Operation), then Work) Work {
	return func(ctx context.Context, p Payment) Reply {
		word(onceward.FromContext(ctx))
		return then(ctx, p)
	}
}

// testRefused: a handler's own refusal is an answer like any other, and what it wrote before is undone.
func testRefused(s *service) {
	s.serveWork(s.replies(http.StatusPaymentRequired), onceward.Transactional())
	first := s.want("first", s.call(keyed("k")), http.StatusPaymentRequired, false)
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("refused", 1)
	s.wantPayments("refused", 0)
}

// testKeepWrites: unless the handler wants to keep it.
func testKeepWrites(s *service) {
	s.serveWork(says((*onceward.Operation).KeepWrites, s.replies(http.StatusPaymentRequired)), onceward.Transactional())
	first := s.want("first", s.call(keyed("k")), http.StatusPaymentRequired, false)
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantPayments("refused", 1)
}

// testFailureRetry: a failure that did nothing is not kept.
func testFailureRetry(s *service) {
	s.serveWork(s.replies(http.StatusInternalServerError), onceward.Reserved(onceward.FailureRetry))
	s.want("first", s.call(keyed("k")), http.StatusInternalServerError, false)
	s.want("again", s.call(keyed("k")), http.StatusInternalServerError, false)
	s.wantRuns("each attempt", 2)
}

// testFailureStore: a failure that is final is the answer.
func testFailureStore(s *service) {
	s.serveWork(s.replies(http.StatusInternalServerError), onceward.Reserved(onceward.FailureStore))
	first := s.want("first", s.call(keyed("k")), http.StatusInternalServerError, false)
	s.wantSame("again", s.call(keyed("k")), first)
	s.wantRuns("one attempt", 1)
}

// testFailureUnknown: a failure of which it is not known what it did is never executed again.
func testFailureUnknown(s *service) {
	s.serveWork(s.replies(http.StatusInternalServerError), reserved)
	s.wantFailure("first", s.call(keyed("k")))
	s.wantUnknown("again", s.call(keyed("k")))
	s.wantRuns("one attempt", 1)
}

// wantFailure checks the answer to the call whose failure made the outcome unknown.
func (s *service) wantFailure(what string, got Answer) {
	s.Helper()
	if s.adapter.Features.ProblemForUnknown {
		s.wantProblem(what, got, http.StatusInternalServerError, "outcome-unknown")
		return
	}
	s.want(what, got, http.StatusInternalServerError, false)
}

func (s *service) wantUnknown(what string, got Answer) {
	s.Helper()
	if s.wantProblem(what, got, http.StatusConflict, "outcome-unknown"); !got.Retryable {
		s.Errorf("%s: got %+v, want retryable", what, got)
	}
}

// testFailureInTransaction: it undoes everything, and a retry executes.
func testFailureInTransaction(s *service) {
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		status := http.StatusCreated
		if s.runs.Load() == 1 {
			status = http.StatusInternalServerError
		}
		return s.replies(status)(ctx, p)
	}, onceward.Transactional())
	s.want("first", s.call(keyed("k")), http.StatusInternalServerError, false)
	s.wantPayments("failed", 0)
	s.want("again", s.call(keyed("k")), http.StatusCreated, false)
	s.wantPayments("executed", 1)
}

// testUnavailable: 503 says that nothing was done, and is not kept, also where failures are.
func testUnavailable(s *service) {
	s.serveWork(s.replies(http.StatusServiceUnavailable), onceward.Reserved(onceward.FailureStore))
	s.want("first", s.call(keyed("k")), http.StatusServiceUnavailable, false)
	s.want("again", s.call(keyed("k")), http.StatusServiceUnavailable, false)
	s.wantRuns("each attempt", 2)
}

// testReject: of a request that is not valid nothing is kept: the corrected one may use the same key.
func testReject(s *service, mode onceward.Option) {
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		if p.Amount < 0 {
			onceward.FromContext(ctx).Reject()
			return s.replies(http.StatusBadRequest)(ctx, p)
		}
		return s.pay(ctx, p)
	}, mode)
	bad := keyed("k")
	bad.Amount = -1
	s.want("not valid", s.call(bad), http.StatusBadRequest, false)
	s.wantPayments("not valid", 0)
	first := s.want("corrected", s.call(keyed("k")), http.StatusCreated, false)
	s.wantSame("replay", s.call(keyed("k")), first)
}

// testNotExecuted: the key stays with its request, which may be executed.
func testNotExecuted(s *service) {
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		if s.runs.Load() > 1 {
			return s.pay(ctx, p)
		}
		onceward.FromContext(ctx).NotExecuted()
		return Reply{Status: http.StatusInternalServerError, Body: "later"}
	}, reserved)
	s.want("first", s.call(keyed("k")), http.StatusInternalServerError, false)
	other := keyed("k")
	other.Amount = 8
	s.wantProblem("another request", s.call(other), http.StatusUnprocessableEntity, "mismatch")
	first := s.want("again", s.call(keyed("k")), http.StatusCreated, false)
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("two attempts", 2)
}

// testUnknown: the handler's word goes before its status.
func testUnknown(s *service) {
	s.serveWork(says((*onceward.Operation).Unknown, s.replies(http.StatusInternalServerError)),
		onceward.Reserved(onceward.FailureRetry))
	s.wantFailure("first", s.call(keyed("k")))
	s.wantUnknown("again", s.call(keyed("k")))
	s.wantRuns("one attempt", 1)
}

// testPanic: it goes on to the framework, which recovers from it or cuts the connection, and leaves nothing locked.
func testPanic(s *service) {
	for _, test := range []struct {
		name  string
		mode  onceward.Option
		again func(s *service, got Answer)
	}{
		{"transactional", onceward.Transactional(), func(s *service, got Answer) {
			s.want("again", got, http.StatusCreated, false)
			s.wantPayments("again", 1)
		}},
		{"retry", onceward.Reserved(onceward.FailureRetry), func(s *service, got Answer) {
			s.want("again", got, http.StatusCreated, false)
		}},
		{"unknown", reserved, func(s *service, got Answer) {
			s.wantUnknown("again", got)
			s.wantRuns("again", 1)
		}},
	} {
		s := newService(s.T, s.adapter)
		s.serveWork(func(ctx context.Context, p Payment) Reply {
			if s.runs.Load() > 1 {
				return s.pay(ctx, p)
			}
			if err := s.write(ctx, "lost", p); err != nil {
				s.Error(err)
			}
			panic("the test lets the handler panic")
		}, test.mode)
		got, err := s.caller.Call(s.Context(), keyed("k"))
		if err == nil && (got.Status != http.StatusInternalServerError || got.Code != "") {
			s.Errorf("%s: got %+v, want the framework's 500, or a connection that was cut", test.name, got)
		}
		test.again(s, s.call(keyed("k")))
		s.want("another key", s.call(keyed("l")), http.StatusCreated, false)
	}
}

// testDeadline: a handler that gives up at its deadline, without a word, has not succeeded.
func testDeadline(s *service) {
	late := func(ctx context.Context, _ Payment) Reply {
		<-ctx.Done()
		return Reply{}
	}
	s.serveWork(late, reserved, onceward.Deadline(20*time.Millisecond))
	if first := s.call(keyed("k")); first.Status < http.StatusInternalServerError || first.Replayed {
		s.Errorf("reserved: got %+v, want a failure", first)
	}
	s.wantUnknown("reserved, again", s.call(keyed("k")))
	s.wantRuns("reserved", 1)

	undone := newService(s.T, s.adapter)
	undone.serveWork(late, onceward.Transactional(), onceward.Deadline(20*time.Millisecond))
	for range 2 {
		if got := undone.call(keyed("k")); got.Status < http.StatusInternalServerError || got.Replayed {
			s.Errorf("transactional: got %+v, want a failure", got)
		}
	}
	undone.wantRuns("transactional", 2)
}

// FrontDeadline is how long the context of a request lasts that has a deadline from a middleware in front of the guard.
const FrontDeadline = 20 * time.Millisecond

// testDeadlineInFront: the deadline that the request's context has in front of the guard is the handler's, where it is the
// earlier one (rule E6).
func testDeadlineInFront(s *service, mode onceward.Option) {
	s.adapter.Serve = s.adapter.Deadline
	s.serveWork(func(ctx context.Context, p Payment) Reply {
		until, ok := ctx.Deadline()
		if !ok || time.Until(until) > FrontDeadline {
			s.Errorf("E6: the handler's deadline is in %s, set %t, want the one of the request", time.Until(until), ok)
			return s.pay(ctx, p)
		}
		<-ctx.Done()
		return Reply{}
	}, mode)
	await.That(s, "the handler ran", func() bool { // the deadline of an earlier request may have passed before
		if got := s.call(keyed("k")); got.Status < http.StatusInternalServerError || got.Replayed {
			s.Errorf("E6: got %s, want a failure", got)
		}
		return s.runs.Load() > 0
	})
}

// NewUndoingStore returns a store that undoes the first run of each transaction, for tests of what an adapter does when
// a handler runs again.
func NewUndoingStore(t *testing.T) store.Store {
	t.Helper()
	return undoing{newService(t, Adapter{}).store}
}

// undoing is a store that undoes the first run of each transaction, as a database does whose neighbours were faster.
type undoing struct{ *sqlite.Store }

// Transact implements [store.Transactor].
func (u undoing) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (store.Verdict, error) {
	verdict, err := u.Store.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
		work(ctx, v)
		return store.Settlement{Action: store.TxRollback}
	})
	if err != nil || verdict.Decision != store.DecisionExecute {
		return verdict, err
	}
	return u.Store.Transact(ctx, r, work)
}

// testRerun: a transaction that the database undid is run again, whole, and leaves one answer: nothing of the run
// before is in it.
func testRerun(s *service) {
	work := func(ctx context.Context, p Payment) Reply {
		reply := s.pay(ctx, p)
		if s.runs.Load() == 1 {
			reply.Status, reply.Body = http.StatusAccepted, strings.Repeat("undone", 100)
			reply.Header = map[string]string{"X-Undone": "yes"}
		}
		return reply
	}
	undo := func(s *sqlite.Store) store.Store { return undoing{s} }
	s.serveWith(setup{work: work, wrap: undo}, onceward.Transactional())
	first := s.want("first", s.call(keyed("k")), http.StatusCreated, false)
	if first.Header.Get("X-Undone") != "" || strings.Contains(first.Body, "undone") {
		s.Errorf("the answer of the run that was undone is in that of the other: %+v", first)
	}
	s.wantSame("replay", s.call(keyed("k")), first)
	s.wantRuns("undone and repeated", 2)
	s.wantPayments("undone and repeated", 1)
	s.wantQuiet()
}

// testSilence: a handler that ends in time without a word has succeeded, and the log tells of it.
func testSilence(s *service) {
	s.serveWork(func(context.Context, Payment) Reply { return Reply{} }, reserved)
	s.want("first", s.call(keyed("k")), http.StatusOK, false)
	s.want("again", s.call(keyed("k")), http.StatusOK, true)
	s.wantRuns("silence", 1)
	if log := s.log.String(); !strings.Contains(log, "the handler wrote no answer") {
		s.Errorf("of a handler that wrote no answer the log tells %q", log)
	}
	if told := observed[onceward.BypassedEvent](s); len(told) != 0 {
		s.Errorf("a handler that wrote no answer is told of as %+v", told)
	}
}
