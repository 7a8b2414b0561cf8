package onceward

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/store"
)

// runner is what an execution executes: an HTTP handler or a function.
type runner interface {
	// work runs once and says how it ended. It recovers from a panic and keeps it for after the result. It may be called
	// again if the store undid the transaction.
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
	// suspended says that the operation in progress is this one, which goes on later.
	suspended bool
}

// execution is one protected request, from its reservation to its settlement. It is one allocation with all it needs.
type execution struct {
	guard    *Guard
	settings *settings
	caller   context.Context // ends when the caller leaves
	base     context.Context // the caller's values, never cancelled
	res      store.Reservation
	prints   [2]store.Fingerprint
	op       Operation
	lease    lease
	done     store.Completion // the answer that is being stored

	reserveCtx lazyContext
	workCtx    lazyContext
	settleCtx  lazyContext
}

// prepare fills in the reservation, which the fingerprints are added to.
func (f *execution) prepare(g *Guard, s *settings, caller context.Context, id store.ID, operation string) {
	f.guard, f.settings, f.caller = g, s, caller
	f.base = context.WithoutCancel(caller)
	f.res = store.Reservation{
		ID: id, Operation: operation, OnLost: s.onLost, Nonce: newNonce(), Lease: s.lease, Retention: s.retention,
		Fingerprints: f.prints[:0], DownstreamSecret: g.downstream.current(),
	}
	if g.config.TraceID != nil {
		f.res.TraceID = g.config.TraceID(caller)
	}
	f.op.id, f.op.name = id, operation
}

// newNonce needs to be unique, not secret.
func newNonce() (n store.Nonce) {
	binary.NativeEndian.PutUint64(n[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(n[8:], rand.Uint64())
	return n
}

// run takes the execution to its result, waiting for an attempt in flight if the route says so.
func (f *execution) run(w runner) result {
	l := f.attempt(w)
	if l.decision != store.DecisionInProgress || l.suspended || f.settings.inFlight != inFlightWait {
		return l
	}
	if f.guard.waiting.Add(1) > int64(f.guard.config.MaxWaiters) {
		f.guard.waiting.Add(-1)
		return l
	}
	defer f.guard.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(f.caller, f.settings.wait)
	defer cancel()
	for l.decision == store.DecisionInProgress && !l.suspended {
		if err := f.waitForChange(ctx, &l); err != nil {
			break
		}
		l = f.attempt(w)
	}
	if l.decision == store.DecisionInProgress && !l.suspended && f.left() {
		return result{kind: resultCallerLeft}
	}
	return l
}

// left reports whether the caller is gone.
func (f *execution) left() bool { return f.caller.Err() != nil }

// onFailure is what a failure means: in a transaction nothing was done, and what the route says does not cover an owner that
// lost its lease (E2).
func (f *execution) onFailure(ctx context.Context) Failure {
	switch {
	case f.settings.mode == modeTransactional:
		return FailureRetry
	case errors.Is(context.Cause(ctx), ErrLeaseLost):
		return FailureUnknown
	default:
		return f.settings.onFailure
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

// storeContext bounds one call to the store. A context is used once; later calls get a new one.
func (f *execution) storeContext(c *lazyContext, now time.Time) *lazyContext {
	if c.parent != nil {
		c = new(lazyContext)
	}
	return c.start(f.base, now.Add(f.guard.config.StoreTimeout), context.DeadlineExceeded)
}

// answer is the response that a result sends.
func (l *result) answer() *store.Response {
	if l.response != nil {
		return l.response
	}
	return &l.record.Response
}

// waitForChange returns when the attempt in flight may have ended, by its own doing or because its lease is over.
func (f *execution) waitForChange(ctx context.Context, l *result) error {
	attempt := ctx
	if left := l.record.LeaseUntil.Sub(l.now); !l.record.LeaseUntil.IsZero() && left > 0 {
		bounded, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		attempt = bounded
	}
	err := f.waitForStore(attempt, l.record.Attempt)
	if attempt.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (f *execution) waitForStore(ctx context.Context, attempt int64) error {
	if f.guard.waiter != nil {
		return f.guard.waiter.Wait(ctx, f.res.ID, attempt)
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
