package onceward

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
)

// runner is what an execution executes: an HTTP handler or a function.
type runner interface {
	// work runs once and says how it ended. It recovers from a panic and keeps it for after the result. It may be
	// called again if the store undid the transaction.
	work(ctx context.Context, op *Operation) outcome
}

// outcomeKind is how an execution ended.
type outcomeKind uint8

const (
	// outcomeRelease: nothing was done.
	outcomeRelease outcomeKind = iota
	// outcomeAnswer: there is an answer to keep.
	outcomeAnswer
	// outcomeUnknown: it is not known what was done.
	outcomeUnknown
	// outcomeSuspend: a later attempt goes on from the recovery point.
	outcomeSuspend
	// outcomeReject: nothing was done, and nothing is to be kept. Errors are marked so; an execution that rejects ends
	// in outcomeRelease, and its operation says that it was rejected.
	outcomeReject
)

// outcome is what an execution came to.
type outcome struct {
	kind     outcomeKind
	response store.Response
	undoWork bool // in a transaction: keep the answer alone
	reason   string
}

// resultKind is what became of an execution.
type resultKind uint8

const (
	// resultAnswer: this request's answer is stored, and may be sent.
	resultAnswer resultKind = iota + 1
	// resultStored: another answer is stored, and is sent instead.
	resultStored
	// resultReleased: nothing was done; the handler's words may be sent but are not kept.
	resultReleased
	// resultUnknown: the outcome became unknown in this request.
	resultUnknown
	// resultDecision: the store did not grant the right to execute, and there is nothing to replay.
	resultDecision
	// resultFailed: the store could not answer, or the database refused the work; nothing was executed.
	resultFailed
	// resultCallerLeft: the caller left before anything was executed.
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
	// nothingDone says of resultReleased that it is no attempt's word alone: none left a trace of something done, and the
	// store knows that none did.
	nothingDone bool
	// limit is the one that a decision comes from; nil if there is none.
	limit *LimitError
	// suspended says that the operation in progress is this one, which goes on later.
	suspended bool
}

// execution is one protected request, from its reservation to its settlement. It is one allocation with all it needs.
type execution struct {
	guard       *Guard
	settings    *settings
	caller      context.Context // ends when the caller leaves
	until       time.Time       // a deadline that a middleware in front has set; zero for none
	base        context.Context // the caller's values, never cancelled
	detached    detachedContext // that is this one
	reservation store.Reservation
	prints      [2]store.Fingerprint
	op          Operation
	lease       lease
	done        store.Completion // the answer that is being stored
	limit       *LimitError      // the limit that the scope has reached, if it has
	tookKey     bool             // allowance for a new key was taken
	actor       string           // who calls, where executions are audited
	audited     store.Decision   // what was written to that audit last
	own         *store.Response  // what the caller gets, where that is more than what is stored
	waited      bool             // for an attempt in flight
	runsAgain   bool             // what it does was undone by the store, and its grant was told of

	reserveCtx lazyContext
	workCtx    lazyContext
	settleCtx  lazyContext
}

// prepare fills in the reservation, which the fingerprints are added to.
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

// newNonce needs to be unique, not secret.
func newNonce() (n store.Nonce) {
	binary.NativeEndian.PutUint64(n[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(n[8:], rand.Uint64())
	return n
}

// run takes the execution to its result, waiting for an attempt in flight if the route says so.
func (e *execution) run(r runner) result {
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

// left reports whether the caller is gone.
func (e *execution) left() bool { return e.caller.Err() != nil }

// onFailure is what a failure means: in a transaction nothing was done, and what the route says does not cover an owner
// that lost its lease (E2).
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

// failedAs is the outcome of a failure that means this. The answer is asked for if it is to be kept.
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

// storeContext bounds one call to the store.
func (e *execution) storeContext(c *lazyContext, now time.Time) *lazyContext {
	return c.unused().start(e.base, now.Add(e.guard.config.StoreTimeout), context.DeadlineExceeded)
}

// answer is the response that a result sends.
func (res *result) answer() *store.Response {
	if res.response != nil {
		return res.response
	}
	return &res.record.Response
}

// waitForChange returns when the attempt in flight may have ended, by its own doing or because its lease is over.
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

// pollInterval is how often a waiting duplicate asks a store that cannot notify.
const pollInterval = 50 * time.Millisecond
