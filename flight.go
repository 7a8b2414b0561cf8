package onceward

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"
)

// worker is what a flight executes: an HTTP handler or a function.
type worker interface {
	// work runs once and says how it ended. It recovers from a panic and keeps it for after the landing. It may be called
	// again if the store undid the transaction.
	work(ctx context.Context, op *Operation) ending
}

// endingKind is how an execution ended.
type endingKind uint8

const (
	// endRelease: nothing was done.
	endRelease endingKind = iota
	// endAnswer: there is an answer to keep.
	endAnswer
	// endUnknown: it is not known what was done.
	endUnknown
	// endSuspend: a later attempt goes on from the recovery point.
	endSuspend
)

// ending is what an execution came to.
type ending struct {
	kind     endingKind
	response Response
	undoWork bool // in a transaction: keep the answer alone
	reason   string
}

// landingKind is what became of a flight.
type landingKind uint8

const (
	// landedAnswer: this request's answer is stored, and may be sent.
	landedAnswer landingKind = iota + 1
	// landedStored: another answer is stored, and is sent instead.
	landedStored
	// landedReleased: nothing was done; the handler's words may be sent but are not kept.
	landedReleased
	// landedUnknown: the outcome became unknown in this request.
	landedUnknown
	// landedDecision: the store did not grant the right to execute, and there is nothing to replay.
	landedDecision
	// landedFailed: the store could not answer, or the database refused the work; nothing was executed.
	landedFailed
	// landedLeft: the caller left before anything was executed.
	landedLeft
)

// landing is the end of a flight.
type landing struct {
	kind     landingKind
	decision Decision
	response *Response
	expires  time.Time
	record   Record
	now      time.Time
	err      error
	// suspended says that the operation in progress is this one, which goes on later.
	suspended bool
}

// flight is one protected request, from its reservation to its settlement. It is one allocation with all it needs.
type flight struct {
	guard    *Guard
	settings *settings
	caller   context.Context // ends when the caller leaves
	base     context.Context // the caller's values, never cancelled
	res      Reservation
	prints   [2]Fingerprint
	op       Operation
	lease    lease
	done     Completion // the answer that is being stored

	reserveCtx lazyContext
	workCtx    lazyContext
	settleCtx  lazyContext
}

// prepare fills in the reservation, which the fingerprints are added to.
func (f *flight) prepare(g *Guard, s *settings, caller context.Context, id ID, operation string) {
	f.guard, f.settings, f.caller = g, s, caller
	f.base = context.WithoutCancel(caller)
	f.res = Reservation{
		ID: id, Operation: operation, OnLost: s.onLost, Nonce: newNonce(), Lease: s.lease, Retention: s.retention,
		Fingerprints: f.prints[:0], DownstreamSecret: g.downstream.current(),
	}
	if g.config.TraceID != nil {
		f.res.TraceID = g.config.TraceID(caller)
	}
	f.op.id, f.op.name = id, operation
}

// newNonce needs to be unique, not secret.
func newNonce() (n Nonce) {
	binary.NativeEndian.PutUint64(n[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(n[8:], rand.Uint64())
	return n
}

// run takes the flight to its landing, waiting for an attempt in flight if the route says so.
func (f *flight) run(w worker) landing {
	l := f.try(w)
	if l.decision != DecisionInProgress || l.suspended || f.settings.inFlight != inFlightWait {
		return l
	}
	if f.guard.waiting.Add(1) > int64(f.guard.config.MaxWaiters) {
		f.guard.waiting.Add(-1)
		return l
	}
	defer f.guard.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(f.caller, f.settings.wait)
	defer cancel()
	for l.decision == DecisionInProgress && !l.suspended {
		if err := f.waitForChange(ctx, &l); err != nil {
			break
		}
		l = f.try(w)
	}
	if l.decision == DecisionInProgress && !l.suspended && f.left() {
		return landing{kind: landedLeft}
	}
	return l
}

// try makes one reservation and does what the store decides.
func (f *flight) try(w worker) landing {
	if f.settings.mode == modeTransactional {
		return f.transact(w)
	}
	return f.reserve(w)
}

// left reports whether the caller is gone.
func (f *flight) left() bool { return f.caller.Err() != nil }

// reserve asks for the right to execute and, if it is granted, executes.
func (f *flight) reserve(w worker) landing {
	sent := time.Now()
	ctx := f.storeContext(&f.reserveCtx, sent)
	v, err := f.guard.store.Reserve(ctx, &f.res)
	if err != nil && !errors.Is(err, ErrUnreadable) && ctx.Err() == nil {
		// The reply may have been lost; the nonce makes the call repeatable.
		f.guard.storeFailed(f.base, f.op.name, "reserve", err)
		sent = time.Now()
		v, err = f.guard.store.Reserve(ctx, &f.res)
	}
	ctx.release()
	if err == nil {
		err = checkVerdict(&v, &f.res)
	}
	if err != nil {
		return f.reserveFailed(err)
	}
	f.decided(&v, sent)
	if v.Decision != DecisionExecute {
		return landed(&v)
	}
	if err := f.begin(&v); err != nil {
		f.giveBack(err.Error())
		return landing{kind: landedFailed, err: err}
	}
	if f.left() {
		f.giveBack("the caller left before execution")
		return landing{kind: landedLeft}
	}
	return f.execute(w, leaseStart(&v, f.settings.lease, sent))
}

// leaseStart is from when an owner counts its lease, by this node's clock: never later than the store counts (S5).
// The store decided no earlier than the call was sent, and its own times tell how much of the lease was left then. Of
// a grant that is repeated by its nonce a part is used up, whichever earlier call it was that got through, and
// whenever that was.
func leaseStart(v *Verdict, lease time.Duration, sent time.Time) time.Time {
	left := v.Record.LeaseUntil.Sub(v.Now)
	return sent.Add(min(left-lease, 0))
}

// storeContext bounds one call to the store. A context is used once; later calls get a new one.
func (f *flight) storeContext(c *lazyContext, now time.Time) *lazyContext {
	if c.parent != nil {
		c = new(lazyContext)
	}
	return c.start(f.base, now.Add(f.guard.config.StoreTimeout), context.DeadlineExceeded)
}

// checkVerdict refuses what a store cannot rightly answer: acting on another's record would be worse than not answering.
func checkVerdict(v *Verdict, r *Reservation) error {
	rec := &v.Record
	ok := rec.ID == r.ID || rec.State == StateNone && rec.ID == ID{}
	switch v.Decision {
	case DecisionExecute:
		held := !v.Now.IsZero() && v.Now.Before(rec.LeaseUntil)
		ok = ok && rec.State == StateInProgress && rec.Nonce == r.Nonce && rec.Attempt != 0 && held
	case DecisionReplay:
		same, err := sameRequest(&rec.Fingerprint, r.Fingerprints)
		known := rec.Version != 0 && rec.Version <= RecordVersion
		ok = ok && rec.State == StateCompleted && known && same && err == nil && rec.Response.Status >= minStatus
	case DecisionInProgress, DecisionMismatch, DecisionUnknown, DecisionRefused:
	default:
		ok = false
	}
	if !ok {
		return &UnreadableError{Version: rec.Version, Reason: "the store answered with a record or a decision that cannot belong to this request"}
	}
	return nil
}

// landed is the landing of a decision that does not execute.
func landed(v *Verdict) landing {
	l := landing{kind: landedDecision, decision: v.Decision, record: v.Record, now: v.Now}
	if v.Decision == DecisionReplay {
		l.kind, l.expires = landedStored, v.Record.ExpiresAt
	}
	return l
}

// answer is the response that a landing sends.
func (l *landing) answer() *Response {
	if l.response != nil {
		return l.response
	}
	return &l.record.Response
}

// reserveFailed answers a reservation without an answer: nothing was executed. Where the reply was lost the store may hold
// a grant that nobody took, which is given back, so that the key is not locked for a lease and then unknown for nothing.
func (f *flight) reserveFailed(err error) landing {
	if !errors.Is(err, ErrUnreadable) {
		f.guard.storeFailed(f.base, f.op.name, "reserve", err)
		if f.res.OnLost == Reconcile {
			f.guard.orphans.add(&f.res, err)
		}
	}
	return landing{kind: landedFailed, err: err}
}

// begin takes over what was granted. An operation whose downstream keys cannot be derived is not executed: under other keys
// what it did before would be done again.
func (f *flight) begin(v *Verdict) (err error) {
	f.op.attempt, f.op.origin = v.Record.Attempt, v.Origin
	if f.settings.mode == modeReserved {
		f.op.flight = f
	}
	f.op.resumed = v.Origin == OriginResumed || v.Origin == OriginRepeated && f.res.OnLost == Resume
	f.op.point, f.op.data = v.Record.Point, v.Record.Data
	if f.op.secret, err = f.guard.downstream.secret(&v.Record); err != nil {
		f.guard.config.Logger.ErrorContext(f.base, "onceward: not executed",
			"operation", f.op.name, "key_hash", f.res.ID.Hash(), "attempt", f.op.attempt, "error", err)
	}
	return err
}

// giveBack ends a grant that nobody takes. A resumed operation has a past: it is left for the next attempt, at once.
// Should that fail, the lease ends by itself.
func (f *flight) giveBack(reason string) {
	if !f.op.resumed {
		f.settleRelease(reason)
		return
	}
	_ = f.once(func(ctx context.Context) error { return f.guard.store.Extend(ctx, f.claim(), clockStep) })
}

// execute runs the worker under a lease that counts from start, and settles.
func (f *flight) execute(w worker, start time.Time) landing {
	ctx := f.workCtx.start(f.base, time.Now().Add(f.settings.deadline), ErrDeadline)
	ctx.op = &f.op
	f.lease.claim = Claim{ID: f.res.ID, Attempt: f.op.attempt}
	f.lease.name, f.lease.ttl, f.lease.ctx = f.op.name, f.settings.lease, ctx
	f.lease.start, f.lease.until = start, ctx.deadline
	f.op.lease = &f.lease
	defer ctx.release()
	if _, held := f.lease.held(time.Now()); !held {
		// Somebody else may be at it. Nothing ran.
		f.giveBack("the grant took longer to arrive than it lasted")
		return landing{kind: landedFailed, err: ErrLeaseLost}
	}
	f.guard.keeper.add(&f.lease)
	defer f.guard.keeper.remove(&f.lease)
	end := w.work(ctx, &f.op)
	f.lease.handlerEnded()
	return f.settle(end)
}

func (f *flight) decided(v *Verdict, sent time.Time) {
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, DecidedEvent{
			ID: f.res.ID, Operation: f.op.name, Decision: v.Decision, Origin: v.Origin, Attempt: v.Record.Attempt,
			Elapsed: time.Since(sent),
		})
	}
}

// waitForChange returns when the attempt in flight may have ended, by its own doing or because its lease is over.
func (f *flight) waitForChange(ctx context.Context, l *landing) error {
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

func (f *flight) waitForStore(ctx context.Context, attempt int64) error {
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
