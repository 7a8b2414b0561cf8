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
	l := f.try(w)
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
		l = f.try(w)
	}
	if l.decision == store.DecisionInProgress && !l.suspended && f.left() {
		return result{kind: resultCallerLeft}
	}
	return l
}

// try makes one reservation and does what the store decides.
func (f *execution) try(w runner) result {
	if f.settings.mode == modeTransactional {
		return f.transact(w)
	}
	return f.reserve(w)
}

// left reports whether the caller is gone.
func (f *execution) left() bool { return f.caller.Err() != nil }

// reserve asks for the right to execute and, if it is granted, executes.
func (f *execution) reserve(w runner) result {
	sent := time.Now()
	ctx := f.storeContext(&f.reserveCtx, sent)
	v, err := f.guard.store.Reserve(ctx, &f.res)
	if err != nil && !errors.Is(err, store.ErrUnreadable) && ctx.Err() == nil {
		// The reply may have been lost; the nonce makes the call repeatable.
		f.guard.storeFailed(f.base, f.op.name, "reserve", err)
		sent = time.Now()
		v, err = f.guard.store.Reserve(ctx, &f.res)
	}
	ctx.release()
	if err == nil {
		err = v.Check(&f.res)
	}
	if err != nil {
		return f.reserveFailed(err)
	}
	f.decided(&v, sent)
	if v.Decision != store.DecisionExecute {
		return decidedResult(&v)
	}
	if err := f.begin(&v); err != nil {
		f.release(err.Error())
		return result{kind: resultFailed, err: err}
	}
	if f.left() {
		f.release("the caller left before execution")
		return result{kind: resultCallerLeft}
	}
	return f.execute(w, leaseStart(&v, f.settings.lease, sent))
}

// leaseStart is from when an owner counts its lease, by this node's clock: never later than the store counts (S5).
// The store decided no earlier than the call was sent, and its own times tell how much of the lease was left then. Of
// a grant that is repeated by its nonce a part is used up, whichever earlier call it was that got through, and
// whenever that was.
func leaseStart(v *store.Verdict, lease time.Duration, sent time.Time) time.Time {
	left := v.Record.LeaseUntil.Sub(v.Now)
	return sent.Add(min(left-lease, 0))
}

// storeContext bounds one call to the store. A context is used once; later calls get a new one.
func (f *execution) storeContext(c *lazyContext, now time.Time) *lazyContext {
	if c.parent != nil {
		c = new(lazyContext)
	}
	return c.start(f.base, now.Add(f.guard.config.StoreTimeout), context.DeadlineExceeded)
}

// decidedResult is the result of a decision that does not execute.
func decidedResult(v *store.Verdict) result {
	l := result{kind: resultDecision, decision: v.Decision, record: v.Record, now: v.Now}
	if v.Decision == store.DecisionReplay {
		l.kind, l.expires = resultStored, v.Record.ExpiresAt
	}
	return l
}

// answer is the response that a result sends.
func (l *result) answer() *store.Response {
	if l.response != nil {
		return l.response
	}
	return &l.record.Response
}

// reserveFailed answers a reservation without an answer: nothing was executed. Where the reply was lost the store may hold
// a grant that nobody took, which is given back, so that the key is not locked for a lease and then unknown for nothing.
func (f *execution) reserveFailed(err error) result {
	if !errors.Is(err, store.ErrUnreadable) {
		f.guard.storeFailed(f.base, f.op.name, "reserve", err)
		if f.res.OnLost == store.LostReconcile {
			f.guard.orphans.add(&f.res, err)
		}
	}
	return result{kind: resultFailed, err: err}
}

// begin takes over what was granted. An operation whose downstream keys cannot be derived is not executed: under other keys
// what it did before would be done again.
func (f *execution) begin(v *store.Verdict) (err error) {
	f.op.attempt, f.op.origin = v.Record.Attempt, v.Origin
	if f.settings.mode == modeReserved {
		f.op.execution = f
	}
	f.op.resumed = v.Origin == store.OriginResumed || v.Origin == store.OriginRepeated && f.res.OnLost == store.LostResume
	f.op.point, f.op.data = v.Record.Point, v.Record.Data
	if f.op.secret, err = f.guard.downstream.secret(&v.Record); err != nil {
		f.guard.config.Logger.ErrorContext(f.base, "onceward: not executed",
			"operation", f.op.name, "key_hash", f.res.ID.Hash(), "attempt", f.op.attempt, "error", err)
	}
	return err
}

// release ends a grant that nobody takes. A resumed operation has a past: it is left for the next attempt, at once.
// Should that fail, the lease ends by itself.
func (f *execution) release(reason string) {
	if !f.op.resumed {
		f.settleRelease(reason)
		return
	}
	_ = f.once(func(ctx context.Context) error { return f.guard.store.Extend(ctx, f.claim(), store.ClockStep) })
}

// execute runs the runner under a lease that counts from start, and settles.
func (f *execution) execute(w runner, start time.Time) result {
	ctx := f.workCtx.start(f.base, time.Now().Add(f.settings.deadline), store.ErrDeadline)
	ctx.op = &f.op
	f.lease.claim = store.Claim{ID: f.res.ID, Attempt: f.op.attempt}
	f.lease.name, f.lease.ttl, f.lease.ctx = f.op.name, f.settings.lease, ctx
	f.lease.start, f.lease.until = start, ctx.deadline
	f.op.lease = &f.lease
	defer ctx.release()
	if _, held := f.lease.held(time.Now()); !held {
		// Somebody else may be at it. Nothing ran.
		f.release("the grant took longer to arrive than it lasted")
		return result{kind: resultFailed, err: ErrLeaseLost}
	}
	f.guard.keeper.add(&f.lease)
	defer f.guard.keeper.remove(&f.lease)
	end := w.work(ctx, &f.op)
	f.lease.handlerEnded()
	return f.settle(end)
}

func (f *execution) decided(v *store.Verdict, sent time.Time) {
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, DecidedEvent{
			ID: f.res.ID, Operation: f.op.name, Decision: v.Decision, Origin: v.Origin, Attempt: v.Record.Attempt,
			Elapsed: time.Since(sent),
		})
	}
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
