package onceward

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/store"
)

// attempt makes one reservation and does what the store decides, in the way of the route.
func (f *execution) attempt(w runner) result {
	if f.settings.mode == modeTransactional {
		return f.transact(w)
	}
	return f.reserve(w)
}

// reserve executes with a reservation: the intent is durable before the runner works, and its answer afterwards.
func (f *execution) reserve(w runner) result {
	sent := time.Now()
	ctx := f.storeContext(&f.reserveCtx, sent)
	v, err := f.guard.store.Reserve(ctx, &f.res)
	if err != nil && !errors.Is(err, store.ErrUnreadable) && ctx.Err() == nil {
		// The reply may have been lost; the nonce makes the call repeatable.
		f.storeFailed("reserve", err)
		sent = time.Now()
		v, err = f.guard.store.Reserve(ctx, &f.res)
	}
	ctx.release()
	if err != nil {
		return f.reserveFailed(err)
	}
	if l := f.decided(&v, sent); l.kind != 0 {
		return l
	}
	if l := f.begin(&v); l.kind != 0 {
		f.release(l.err.Error())
		return l
	}
	return f.execute(w, leaseStart(&v, f.settings.lease, sent))
}

// transact executes inside a transaction of the store: there is no lease to keep, and nothing to abandon.
func (f *execution) transact(w runner) result {
	t := &transaction{execution: f, runner: w, sent: time.Now()}
	ctx := f.storeContext(&f.reserveCtx, t.sent)
	v, err := f.guard.transactor.Transact(ctx, &f.res, t.work)
	ctx.release()
	switch {
	case err != nil:
		return f.transactFailed(err)
	case v.Decision != store.DecisionExecute:
		return f.decided(&v, t.sent)
	case !t.ran:
		return result{kind: resultFailed, err: &store.UnreadableError{Reason: "the store granted an execution and did not call it"}}
	case t.refused.kind != 0:
		return t.refused
	case t.end.kind != outcomeAnswer:
		return result{kind: resultReleased}
	default:
		return f.completed(v.Record.ExpiresAt)
	}
}

// transaction is one call of a [store.Transactor].
type transaction struct {
	*execution
	runner  runner
	sent    time.Time
	ran     bool
	refused result // why the runner did not work, if it did not
	end     outcome
}

// work lets the runner work inside the transaction. It starts afresh each time it is called.
func (t *transaction) work(ctx context.Context, v store.Verdict) store.Settlement {
	t.ran, t.end = true, outcome{}
	if t.refused = t.decided(&v, t.sent); t.refused.kind == 0 {
		t.refused = t.begin(&v)
	}
	if t.refused.kind != 0 {
		return store.Settlement{Action: store.TxRollback}
	}
	workCtx := t.workContext(new(lazyContext), context.WithoutCancel(ctx))
	t.end = t.runner.work(workCtx, &t.op)
	workCtx.release()
	if t.end.kind != outcomeAnswer {
		return store.Settlement{Action: store.TxRollback}
	}
	t.done = t.op.completion(t.end.response)
	if t.end.undoWork {
		return store.Settlement{Action: store.TxCommitAnswer, Completion: t.done}
	}
	return store.Settlement{Action: store.TxCommit, Completion: t.done}
}

// decided checks what the store decided and tells the observer. The result has no kind if that is to execute.
func (f *execution) decided(v *store.Verdict, sent time.Time) result {
	if err := v.Check(&f.res); err != nil {
		return result{kind: resultFailed, err: err}
	}
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, DecidedEvent{
			ID: f.res.ID, Operation: f.op.name, Decision: v.Decision, Origin: v.Origin, Attempt: v.Record.Attempt,
			Elapsed: time.Since(sent),
		})
	}
	switch v.Decision {
	case store.DecisionExecute:
		return result{}
	case store.DecisionReplay:
		return result{kind: resultStored, decision: v.Decision, record: v.Record, now: v.Now, expires: v.Record.ExpiresAt}
	default:
		return result{kind: resultDecision, decision: v.Decision, record: v.Record, now: v.Now}
	}
}

var errCallerLeft = errors.New("the caller left before execution")

// begin takes over what was granted. The result has no kind if the runner may work: it may not for a caller that has left, nor
// where downstream keys cannot be derived, because under other keys what was done before would be done again.
func (f *execution) begin(v *store.Verdict) result {
	f.op.attempt, f.op.origin = v.Record.Attempt, v.Origin
	if f.settings.mode == modeReserved {
		f.op.execution = f
	}
	f.op.resumed = v.Origin == store.OriginResumed || v.Origin == store.OriginRepeated && f.res.OnLost == store.LostResume
	f.op.point, f.op.data = v.Record.Point, v.Record.Data
	var err error
	if f.op.secret, err = f.guard.downstream.secret(&v.Record); err != nil {
		f.logError("onceward: not executed", err)
		return result{kind: resultFailed, err: err}
	}
	if f.left() {
		return result{kind: resultCallerLeft, err: errCallerLeft}
	}
	return result{}
}

// reserveFailed answers a reservation without an answer: nothing was executed. Where the reply was lost the store may hold a
// grant without an owner, which is released, so that the key is not locked for a lease and then unknown for nothing.
func (f *execution) reserveFailed(err error) result {
	if !errors.Is(err, store.ErrUnreadable) {
		f.storeFailed("reserve", err)
		if f.res.OnLost == store.LostReconcile {
			f.guard.orphans.add(&f.res, err)
		}
	}
	return result{kind: resultFailed, err: err}
}

// transactFailed says what an error of the transaction means: unless its commit is unknown, nothing was executed.
func (f *execution) transactFailed(err error) result {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		return f.unknown(err)
	case errors.Is(err, store.ErrWorkRefused):
		f.logError("onceward: the database refused what the handler wrote", err)
	case !errors.Is(err, store.ErrUnreadable) && !errors.Is(err, store.ErrDeadline):
		f.storeFailed("transact", err)
	}
	return result{kind: resultFailed, err: err}
}

// release ends a grant that was not used. A resumed operation has a past: it is left for the next attempt, at once.
// Should that fail, the lease ends by itself.
func (f *execution) release(reason string) {
	if !f.op.resumed {
		f.settleRelease(reason)
		return
	}
	_ = f.once(func(ctx context.Context) error { return f.guard.store.Extend(ctx, f.claim(), store.ClockStep) })
}

// leaseStart is from when an owner counts its lease, by this node's clock: never later than the store counts (S5).
// The store decided no earlier than the call was sent, and its own times tell how much of the lease was left then. Of
// a grant that is repeated by its nonce a part is used up, whichever earlier call it was that got through, and
// whenever that was.
func leaseStart(v *store.Verdict, lease time.Duration, sent time.Time) time.Time {
	left := v.Record.LeaseUntil.Sub(v.Now)
	return sent.Add(min(left-lease, 0))
}

// execute lets the runner work under a lease that counts from start, and settles.
func (f *execution) execute(w runner, start time.Time) result {
	ctx := f.workContext(&f.workCtx, f.base)
	f.lease.claim = f.claim()
	f.lease.name, f.lease.ttl, f.lease.ctx = f.op.name, f.settings.lease, ctx
	f.lease.start, f.lease.until = start, ctx.deadline
	f.op.lease = &f.lease
	defer ctx.release()
	if _, held := f.lease.held(time.Now()); !held {
		// Another attempt may be running. Here nothing ran.
		f.release("the grant took longer to arrive than it lasted")
		return result{kind: resultFailed, err: ErrLeaseLost}
	}
	f.guard.keeper.add(&f.lease)
	defer f.guard.keeper.remove(&f.lease)
	end := w.work(ctx, &f.op)
	f.lease.handlerEnded()
	return f.settle(end)
}

// workContext is what the runner works in, bounded by the deadline of the route.
func (f *execution) workContext(c *lazyContext, parent context.Context) *lazyContext {
	c.op = &f.op
	return c.start(parent, time.Now().Add(f.settings.deadline), store.ErrDeadline)
}
