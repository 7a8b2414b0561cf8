package onceward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/onceward/onceward/store"
)

// attempt makes one reservation and carries out the store's decision in the mode of the route.
func (e *execution) attempt(r runner) result {
	e.takeKey()
	defer e.logFailure()
	if e.settings.mode == modeTransactional {
		return e.transact(r)
	}
	return e.reserve(r)
}

// reserve executes with a reservation: the intent is stored before the runner works, and the answer afterwards.
func (e *execution) reserve(r runner) result {
	sent := time.Now()
	ctx := e.storeContext(&e.reserveCtx, sent)
	v, err := e.guard.store.Reserve(ctx, &e.reservation)
	wasSent := !errors.Is(err, store.ErrNotSent)
	if err != nil && wasSent && !errors.Is(err, store.ErrUnreadable) && ctx.Err() == nil {
		// The reply may have been lost; the nonce makes the call repeatable.
		e.called("reserve", sent, err)
		e.storeFailed("reserve", err)
		sent = time.Now()
		v, err = e.guard.store.Reserve(ctx, &e.reservation)
	}
	ctx.release()
	if err != nil {
		e.called("reserve", sent, err)
		return e.reserveFailed(err, wasSent)
	}
	if res := e.decided(e.base, &v, sent); res.kind != 0 {
		if v.Decision == store.DecisionExecute && (res.err == error(store.ErrSealed) || errors.Is(res.err, errNotAudited)) {
			e.granted(&v) // this program cannot decode the carried data, or write the audit; another may
			e.release(res.err.Error())
		}
		return res
	}
	if res := e.begin(&v); res.kind != 0 {
		e.release(res.err.Error())
		return res
	}
	return e.execute(r, leaseStart(&v, e.settings.lease, sent))
}

// transact executes inside a transaction of the store: there is no lease to keep, and nothing to abandon.
func (e *execution) transact(r runner) result {
	t := &transaction{execution: e, runner: r, sent: time.Now()}
	ctx := e.storeContext(&e.reserveCtx, t.sent)
	v, err := e.guard.transactor.Transact(ctx, &e.reservation, t.work)
	ctx.release()
	e.runsAgain = false
	t.report(err)
	if t.ran && t.op.askedPool.Load() {
		e.reportOnce(mistakeSecondConnection, SecondConnectionEvent{Operation: e.op.name})
	}
	res := t.result(&v, err)
	t.reportRun(res.kind == resultUnknown)
	if res.kind != resultAnswer && res.kind != resultUnknown {
		e.returnKey(t.ran && t.refused == nil)
	}
	return res
}

// reportOnce sends the observer a mistake of the work, and logs it once for each operation.
func (e *execution) reportOnce(m mistake, event ObserverEvent) {
	e.guard.observe(e.base, event)
	if e.guard.logged.first(m, e.op.name) {
		e.guard.config.Logger.WarnContext(e.base, mistakes[m].message, "operation", e.op.name,
			"key_hash", e.reservation.ID.Hash(), "remedy", mistakes[m].remedy)
	}
}

// transaction is one call of a [store.Transactor].
type transaction struct {
	*execution
	runner  runner
	sent    time.Time
	ran     bool
	passed  bool    // the deadline passed before the runner had worked
	late    bool    // the deadline passed by so much that nothing may commit
	refused *result // the reason why the runner did not work, or nil
	end     outcome
	by      time.Time       // the deadline of all runs
	within  detachedContext // the transaction's context in the first run
	watched watchedContext  // within, recording whether the transaction is taken
	worked  time.Time       // when the runner ended; zero without a run or an observer
}

// result returns the result of a transaction that has ended.
func (t *transaction) result(v *store.Verdict, err error) result {
	switch {
	case err != nil:
		if t.passed && !errors.Is(err, store.ErrOutcomeUnknown) {
			err = fmt.Errorf("%w: %w", store.ErrDeadline, err) // the deadline may have cut off the connection
		}
		return t.transactFailed(err)
	case v.Decision != store.DecisionExecute:
		return t.decided(t.base, v, t.sent)
	case !t.ran:
		err = &store.UnreadableError{Reason: "the store granted an execution and did not call it"}
		return result{kind: resultFailed, err: err}
	case t.refused != nil:
		return *t.refused
	case t.late:
		return t.transactFailed(store.ErrDeadline)
	case t.end.kind != outcomeAnswer:
		return t.undone()
	default:
		if !t.end.undoWork && !t.op.tookTx.Load() {
			t.reportOnce(mistakeUnusedTx, UnusedTransactionEvent{Operation: t.op.name})
		}
		return t.completed(v.Record.ExpiresAt)
	}
}

// report sends the observer the duration of the commit or rollback, or the error of a transaction that could not begin.
func (t *transaction) report(err error) {
	switch {
	case t.worked != time.Time{}:
		t.called("commit", t.worked, err)
	case err != nil:
		t.called("reserve", t.sent, err)
	}
}

// work runs the runner inside the transaction. Each call starts from the beginning.
func (t *transaction) work(ctx context.Context, v store.Verdict) store.Settlement {
	rerun := t.ran
	t.reportRun(false) // the event of an earlier run, which the store has undone
	t.ran, t.end, t.runsAgain = true, outcome{}, rerun
	if t.refused = t.refuses(ctx, &v); t.refused != nil {
		return store.Settlement{Action: store.TxRollback}
	}
	hasWorked := !t.by.IsZero() // a run that was refused has no deadline
	if t.late = hasWorked && !time.Now().Before(t.by); t.late {
		return store.Settlement{Action: store.TxRollback}
	}
	workCtx := t.workContext(t.inside(ctx, rerun))
	if hasWorked {
		workCtx.deadline = t.by
	}
	t.by = workCtx.deadline
	t.end = t.runner.work(workCtx, &t.op)
	t.overdue(time.Since(workCtx.deadline))
	workCtx.release()
	if t.guard.config.Observer != nil {
		t.worked = time.Now()
	}
	if t.end.kind != outcomeAnswer || t.late {
		return store.Settlement{Action: store.TxRollback}
	}
	t.keep(t.end.response)
	if t.end.undoWork {
		return store.Settlement{Action: store.TxCommitAnswer, Completion: t.done}
	}
	return store.Settlement{Action: store.TxCommit, Completion: t.done}
}

// deadlineGrace is how long after its deadline a transactional handler may still answer with success.
const deadlineGrace = 250 * time.Millisecond

// overdue records whether the deadline has passed. After the deadline only a success within [deadlineGrace] commits: a
// refusal or a failure may come from a statement that the deadline interrupted. An outcome that the handler set itself
// stays.
func (t *transaction) overdue(by time.Duration) {
	succeeded := t.end.kind == outcomeAnswer && t.end.response.Status < http.StatusBadRequest
	t.passed = by >= 0
	t.late = t.passed && (succeeded && by > deadlineGrace || !succeeded && t.op.outcome.Load() == endedAsWritten)
}

// refuses returns the reason why the runner may not work, or nil if it may.
func (t *transaction) refuses(ctx context.Context, v *store.Verdict) *result {
	res := t.decided(ctx, v, t.sent)
	if res.kind == 0 {
		res = t.begin(v)
	}
	if res.kind == 0 {
		return nil
	}
	refused := res // so that only this path allocates
	return &refused
}

// inside returns the transaction's context for one run of the work. Each later run allocates its own, because an undone
// run may still hold the first.
func (t *transaction) inside(ctx context.Context, rerun bool) context.Context {
	if rerun {
		return &watchedContext{context.WithoutCancel(ctx), t.base, &t.op}
	}
	t.within.Context = ctx
	t.watched = watchedContext{&t.within, t.base, &t.op}
	return &t.watched
}

// decided checks the store's decision, writes it to the audit if the route requires it, and reports it to the observer.
// The result has no kind if the decision is to execute. The context is the transaction's, or the caller's without its
// cancellation.
func (e *execution) decided(ctx context.Context, v *store.Verdict, sent time.Time) result {
	err := v.Check(&e.reservation)
	if err == nil && e.settings.audits {
		err = e.audit(ctx, v)
	}
	if err != nil {
		e.returnKey(false)
		return result{kind: resultFailed, err: err}
	}
	e.countDecision(v)
	if e.guard.config.Observer != nil && !e.runsAgain {
		e.guard.observe(e.base, DecidedEvent{
			ID: e.reservation.ID, Operation: e.op.name, Decision: v.Decision, Origin: v.Origin,
			Attempt: v.Record.Attempt, Waited: e.waited, TraceID: v.Record.TraceID, Age: replayAge(v),
			Elapsed: time.Since(sent),
		})
	}
	if v.Decision == store.DecisionExecute {
		return result{}
	}
	if v.Lost() {
		e.foundLost(&v.Record)
	}
	res := result{kind: resultDecision, decision: v.Decision, record: v.Record, now: v.Now, limit: e.limit}
	if v.Decision == store.DecisionReplay {
		res.kind, res.expires = resultStored, v.Record.ExpiresAt
	}
	return res
}

// replayAge returns how long ago the answer of a replay was stored.
func replayAge(v *store.Verdict) time.Duration {
	if v.Decision != store.DecisionReplay {
		return 0
	}
	return max(v.Now.Sub(v.Record.SettledAt), 0)
}

var errOwnerLost = errors.New("the owner was lost: its lease ran out before it had settled")

// foundLost logs and reports an attempt whose owner was lost, as [execution.unknown] does for a running attempt.
func (e *execution) foundLost(rec *store.Record) {
	e.guard.config.Logger.ErrorContext(e.base, "onceward: outcome unknown",
		"operation", rec.Operation, "key_hash", rec.Hash(), "attempt", strconv.FormatInt(rec.Attempt, 10),
		"error", errOwnerLost)
	e.guard.observe(e.base, SettledEvent{
		ID: rec.ID, Operation: rec.Operation, Attempt: rec.Attempt, State: store.StateUnknown, Err: errOwnerLost,
	})
}

var errCallerLeft = errors.New("the caller left before execution")

// begin accepts a grant. The result has no kind if the runner may work. The runner may not work if the caller has left,
// or if the downstream keys cannot be derived: with different keys, earlier effects would be repeated.
func (e *execution) begin(v *store.Verdict) result {
	e.granted(v)
	if e.settings.mode == modeReserved {
		e.op.execution = e
	}
	e.op.point, e.op.data, e.op.sent = v.Record.Point, v.Record.Data, v.Record.MayHaveSent()
	e.op.foundData()
	var err error
	if e.op.secret, err = e.guard.downstream.secret(&v.Record); err != nil {
		e.logError("onceward: not executed", err)
		return result{kind: resultFailed, err: err}
	}
	if e.left() {
		return result{kind: resultCallerLeft, err: errCallerLeft}
	}
	return result{}
}

// granted records the token and the origin of the grant.
func (e *execution) granted(v *store.Verdict) {
	e.op.attempt, e.op.origin = v.Record.Attempt, v.Origin
	e.op.resumed = v.Origin == store.OriginResumed ||
		v.Origin == store.OriginRepeated && e.reservation.OnLost == store.LostResume
}

// reserveFailed returns the result of a reservation that failed: nothing was executed. If only the reply was lost, the
// store may hold a grant without an owner. The grant is released: otherwise the key would be locked for the length of
// the lease, and its outcome would then be unknown, both without need.
func (e *execution) reserveFailed(err error, wasSent bool) result {
	// The allowance is returned even if a record was made: the client retries, and an outage must not use up the
	// scope's allowance.
	e.returnKey(false)
	if errors.Is(err, store.ErrUnreadable) {
		e.logError("onceward: not executed, because the record of the key cannot be read", err)
	} else {
		e.storeFailed("reserve", err)
		if wasSent && e.reservation.OnLost == store.LostReconcile {
			e.guard.orphans.add(&e.reservation, err)
		}
	}
	return result{kind: resultFailed, err: err}
}

// transactFailed returns the result of a transaction that failed: unless it is unknown whether it was committed,
// nothing was executed.
func (e *execution) transactFailed(err error) result {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		return e.unknown(err)
	case errors.Is(err, store.ErrWorkRefused):
		e.logError("onceward: the database refused what the handler wrote", err)
	case errors.Is(err, store.ErrUnreadable):
		e.logError("onceward: not executed, because the record of the key cannot be read", err)
	case errors.Is(err, store.ErrDeadline):
		e.logError("onceward: not executed, because the handler ran past its deadline", err)
	default:
		e.storeFailed("transact", err)
	}
	return result{kind: resultFailed, err: err}
}

// release ends a grant that was not used. A resumed operation is left for the next attempt immediately, because earlier
// attempts may have done something. If the call fails, the lease runs out.
func (e *execution) release(reason string) {
	if !e.op.resumed {
		e.settleRelease(reason)
		return
	}
	_ = e.once("extend", func(ctx context.Context) error { return e.guard.store.Extend(ctx, e.claim(), store.ClockStep) })
}

// leaseStart returns the time from which an owner counts its lease, by this node's clock: never later than the store
// counts (rule S5). The store decided no earlier than the call was sent, and its own times show how much of the lease
// was left then. If the store repeated an earlier grant with the same nonce, a part of the lease has already passed.
func leaseStart(v *store.Verdict, lease time.Duration, sent time.Time) time.Time {
	left := v.Record.LeaseUntil.Sub(v.Now)
	return sent.Add(min(left-lease, 0))
}

// execute runs the runner under a lease that counts from start, and settles.
func (e *execution) execute(r runner, start time.Time) result {
	ctx := e.workContext(e.base)
	ctx.leased = true
	e.lease.claim = e.claim()
	e.lease.name, e.lease.ttl, e.lease.ctx = e.op.name, e.settings.lease, ctx
	e.lease.start, e.lease.until = start, ctx.deadline
	e.op.lease = &e.lease
	defer ctx.release()
	if _, held := e.lease.held(clock()); !held {
		// Another attempt may be running. This one did not run.
		e.release("the grant took longer to arrive than it lasted")
		return result{kind: resultFailed, err: ErrLeaseLost}
	}
	e.guard.keeper.active.Add(1)
	defer e.guard.keeper.active.Add(-1)
	e.guard.keeper.add(&e.lease)
	defer e.guard.keeper.remove(&e.lease)
	end := r.work(ctx, &e.op)
	e.lease.handlerEnded()
	res := e.settle(end)
	e.reportRun(res.kind == resultUnknown)
	return res
}

// hasRun records how the work ended. The observer gets the event when it is known whether the outcome is stored.
func (e *execution) hasRun(started time.Time, end outcomeKind, status int, panicked, failed bool) {
	e.ended, e.endedStatus = end, status
	if e.guard.config.Observer == nil {
		return
	}
	now := time.Now()
	e.executed = ExecutedEvent{
		ID: e.reservation.ID, Operation: e.op.name, Attempt: e.op.attempt, Status: status, Panicked: panicked,
		Failed: failed, Unknown: end == outcomeUnknown, Elapsed: now.Sub(started), EndedAt: now,
	}
}

// reportRun sends the observer the event of a run that was not reported yet.
func (e *execution) reportRun(unknown bool) {
	if e.executed.EndedAt.IsZero() {
		return
	}
	event := e.executed
	event.Unknown = event.Unknown || unknown
	e.executed = ExecutedEvent{}
	e.guard.observe(e.base, event)
}

// workContext returns the runner's context, bounded by the deadline of the route, or of the request if that is earlier.
func (e *execution) workContext(parent context.Context) *lazyContext {
	c := e.workCtx.unused()
	c.op = &e.op
	deadline := time.Now().Add(e.settings.deadline)
	if !e.until.IsZero() && e.until.Before(deadline) {
		deadline = e.until
	}
	return c.start(parent, deadline, store.ErrDeadline)
}
