package onceward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// runner is the work of an execution: an HTTP handler or a function.
type runner interface {
	// work runs once and returns how it ended. It recovers from a panic and keeps it until after the result. It may be
	// called again if the store undid the transaction.
	work(ctx context.Context, op *Operation) outcome
}

// outcomeKind is the kind of an outcome.
type outcomeKind uint8

const (
	// outcomeRelease means that nothing was done.
	outcomeRelease outcomeKind = iota
	// outcomeAnswer means that there is an answer to keep.
	outcomeAnswer
	// outcomeUnknown means that it is not known what was done.
	outcomeUnknown
	// outcomeSuspend means that a later attempt continues from the recovery point.
	outcomeSuspend
	// outcomeReject means that nothing was done, and that no record is to be kept. It marks errors only: an execution
	// that rejects ends with outcomeRelease, and its operation is marked as rejected.
	outcomeReject
)

// outcome is how the work of an execution ended.
type outcome struct {
	kind     outcomeKind
	response store.Response
	undoWork bool // in a transaction: keep only the answer
	reason   string
}

// problem returns the problem to send in place of p: if the key is released, the answer to a failed handler is
// retryable.
func (o *outcome) problem(p *Problem) *Problem {
	if o.kind == outcomeRelease && p == &problemHandlerFailed {
		return &problemHandlerUndone
	}
	return p
}

// resultKind is the kind of a result.
type resultKind uint8

const (
	// resultAnswer means that this request's answer is stored, and may be sent.
	resultAnswer resultKind = iota + 1
	// resultStored means that another answer is stored, and is sent instead.
	resultStored
	// resultReleased means that nothing was done; the handler's answer may be sent but is not kept.
	resultReleased
	// resultUnknown means that the outcome became unknown in this request.
	resultUnknown
	// resultDecision means that the store did not grant the right to execute, and that there is nothing to replay.
	resultDecision
	// resultFailed means that the store could not answer, or the database refused the work; nothing was executed.
	resultFailed
	// resultCallerLeft means that the caller left before anything was executed.
	resultCallerLeft
)

// result is the end of an execution.
type result struct {
	kind     resultKind
	decision store.Decision
	response *store.Response
	expires  time.Time
	record   store.Record
	now      time.Time
	err      error
	// nothingDone means, with resultReleased, that no attempt left a trace of work, and that the store has recorded
	// this: it is more than a claim of this attempt.
	nothingDone bool
	// limit is the limit that the decision comes from; nil if there is none.
	limit *LimitError
	// suspended means that the operation in progress is this one, which continues later.
	suspended bool
}

// execution is one protected request, from its reservation to its settlement, in one allocation.
type execution struct {
	guard       *Guard
	settings    *settings
	caller      context.Context // cancelled when the caller leaves
	until       time.Time       // a deadline set by a middleware in front; zero for none
	base        context.Context // the caller's values, never cancelled
	detached    detachedContext // the value that base points to
	reservation store.Reservation
	prints      [2]store.Fingerprint
	op          Operation
	lease       lease
	done        store.Completion // the answer that is being stored
	limit       *LimitError      // the limit that the scope has reached, or nil
	tookKey     bool             // whether allowance for a new key was taken
	actor       string           // the caller's name, if executions are audited
	audited     store.Decision   // the decision last written to the audit
	own         *store.Response  // the caller's answer, if it contains more than the stored one
	waited      bool             // whether it waited for an attempt in flight
	runsAgain   bool             // the store undid an earlier run, whose grant was already reported
	ended       outcomeKind      // how the last run ended, and with which status
	endedStatus int
	passedOn    bool          // the answer is a problem of another operation, which may be executing
	executed    ExecutedEvent // the event of the last run, until its result is known

	reserveCtx lazyContext
	workCtx    lazyContext
	settleCtx  lazyContext
}

// prepare fills in the reservation without its fingerprints.
func (e *execution) prepare(g *Guard, s *settings, caller context.Context, id store.ID, operation string) {
	e.guard, e.settings, e.caller = g, s, caller
	e.detached.Context = caller
	e.base = &e.detached
	e.reservation = store.Reservation{
		ID: id, Operation: operation, OnLost: s.onLost, Nonce: newNonce(), Lease: s.lease, Retention: s.retention,
		Fingerprints: e.prints[:0], DownstreamSecret: g.downstream.current(), Isolation: s.isolation,
	}
	if g.config.TraceID != nil {
		e.reservation.TraceID = strings.Clone(g.config.TraceID(caller))
	}
	e.op.guard, e.op.id, e.op.name = g, id, operation
}

// newNonce returns a nonce. It needs to be unique, not secret.
func newNonce() (n store.Nonce) {
	binary.NativeEndian.PutUint64(n[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(n[8:], rand.Uint64())
	return n
}

// run executes and returns the result. It waits for an attempt in flight if the route is configured so.
func (e *execution) run(r runner) result {
	if outer := FromContext(e.caller); outer != nil && outer.guard == e.guard && outer.id == e.reservation.ID {
		// The inner execution would wait for the outer one, or answer that the operation is in progress, and the outer
		// one would store this answer.
		e.logError("onceward: not executed inside of the same operation", errProtectedTwice)
		return result{kind: resultFailed, err: errProtectedTwice}
	}
	res := e.attempt(r)
	if res.decision != store.DecisionInProgress || res.suspended || e.settings.inFlight != inFlightWait {
		return res
	}
	if e.guard.waiting.Add(1) > int64(e.guard.config.MaxWaiters) {
		e.guard.waiting.Add(-1)
		return res
	}
	defer e.guard.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(e.caller, e.settings.wait)
	defer cancel()
	for res.decision == store.DecisionInProgress && !res.suspended {
		if err := e.waitForChange(ctx, &res); err != nil {
			break
		}
		e.waited = true
		res = e.attempt(r)
	}
	if res.decision == store.DecisionInProgress && !res.suspended && e.left() {
		return result{kind: resultCallerLeft}
	}
	return res
}

// errProtectedTwice is the error of an operation that is executed inside of itself.
var errProtectedTwice = fmt.Errorf("%w: the same key is protected twice by one guard, as by a middleware of a group and one "+
	"of its route: remove one of them, or give the inner operation a key of its own, such as Operation.DownstreamKey",
	ErrMisconfigured)

// left reports whether the caller is gone.
func (e *execution) left() bool { return e.caller.Err() != nil }

// onFailure returns the meaning of a failure. In a transaction nothing was done, and the route's setting does not cover
// an owner that lost its lease (rule E2).
func (e *execution) onFailure(ctx context.Context) Failure {
	switch {
	case e.settings.mode == modeTransactional:
		return FailureRetry
	case errors.Is(context.Cause(ctx), ErrLeaseLost):
		return FailureUnknown
	default:
		return e.settings.onFailure
	}
}

// failedAs returns the outcome of a failure with this meaning. It calls answer only if the answer is to be kept.
func failedAs(meaning Failure, reason string, answer func() store.Response) outcome {
	switch meaning {
	case FailureRetry:
		return outcome{kind: outcomeRelease, reason: reason}
	case FailureStore:
		return outcome{kind: outcomeAnswer, reason: reason, response: answer()}
	default:
		return outcome{kind: outcomeUnknown, reason: reason}
	}
}

// storeContext returns a context that bounds one call to the store.
func (e *execution) storeContext(c *lazyContext, now time.Time) *lazyContext {
	return c.unused().start(e.base, now.Add(e.guard.config.StoreTimeout), context.DeadlineExceeded)
}

// answer returns the response that a result sends.
func (res *result) answer() *store.Response {
	if res.response != nil {
		return res.response
	}
	return &res.record.Response
}

// waitForChange returns when the attempt in flight may have ended, or its lease has run out.
func (e *execution) waitForChange(ctx context.Context, res *result) error {
	attempt := ctx
	if left := res.record.LeaseUntil.Sub(res.now); !res.record.LeaseUntil.IsZero() && left > 0 {
		bounded, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		attempt = bounded
	}
	err := e.waitForStore(attempt, res.record.Attempt)
	if attempt.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (e *execution) waitForStore(ctx context.Context, attempt int64) error {
	if e.guard.waiter != nil {
		return e.guard.waiter.Wait(ctx, e.reservation.ID, attempt)
	}
	select {
	case <-time.After(pollInterval):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pollInterval is how often a waiting duplicate polls a store that cannot notify.
const pollInterval = 50 * time.Millisecond
