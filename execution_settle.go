package onceward

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/store"
)

// settle writes how an execution ended into the store, before anybody is told (E7).
func (f *execution) settle(end outcome) result {
	switch {
	case end.kind == outcomeAnswer:
		return f.settleAnswer(end.response)
	case end.kind == outcomeSuspend:
		return f.settleSuspend(f.persist)
	case end.kind == outcomeRelease && (!f.op.resumed || f.op.outcome.Load() == endedNeverExecuted):
		return f.settleRelease(end.reason)
	default:
		// A resumed attempt that did nothing says nothing about the attempts before it.
		return f.settleUnknown(errors.New(end.reason))
	}
}

func (f *execution) claim() store.Claim { return store.Claim{ID: f.res.ID, Attempt: f.op.attempt} }

func (f *execution) settleAnswer(response store.Response) result {
	f.done = f.op.completion(response)
	ctx := f.storeContext(&f.settleCtx, time.Now())
	expires, err := f.guard.store.Complete(ctx, f.claim(), &f.done)
	ctx.release()
	if err != nil {
		expires, err = f.completeAgain(&f.done, err)
	}
	if err != nil {
		return f.notCompleted(err)
	}
	f.settled(store.StateCompleted, nil)
	return result{kind: resultAnswer, response: &f.done.Response, expires: expires}
}

// notCompleted lands an execution whose answer was not stored.
func (f *execution) notCompleted(err error) result {
	switch {
	case !final(err) && f.settings.onLost == store.LostResume:
		// A later attempt goes on from the recovery point, and makes the same answer. The store was asked for long enough.
		f.guard.storeFailed(f.base, f.op.name, "complete", err)
		return f.settleSuspend(f.once)
	case !errors.Is(err, store.ErrFenced):
		return f.settleUnknown(err)
	}
	f.refused(&f.done, err)
	if l, ok := f.resolved(err); ok {
		return l
	}
	f.settled(store.StateUnknown, err)
	return result{kind: resultUnknown, err: err}
}

// resolved is the result of an owner that lost to an answer of the same request (S6). An answer to another request, which
// took the key after it was busted, is none of its business.
func (f *execution) resolved(err error) (result, bool) {
	var fenced *store.FencedError
	if !errors.As(err, &fenced) || fenced.Response == nil {
		return result{}, false
	}
	if same, err := fenced.Fingerprint.Matches(f.res.Fingerprints); err != nil || !same {
		return result{}, false
	}
	return result{kind: resultStored, response: fenced.Response, expires: fenced.ExpiresAt}, true
}

// completeAgain repeats a completion that failed until it is answered or given up. Repeating is safe: a completion that
// already happened succeeds.
func (f *execution) completeAgain(done *store.Completion, err error) (expires time.Time, _ error) {
	if final(err) {
		return expires, err
	}
	f.guard.storeFailed(f.base, f.op.name, "complete", err)
	err = f.persist(func(ctx context.Context) (err error) {
		expires, err = f.guard.store.Complete(ctx, f.claim(), done)
		return err
	})
	return expires, err
}

// refused keeps an answer that came too late as evidence for whoever reconciles (S6).
func (f *execution) refused(done *store.Completion, err error) {
	f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
	if f.guard.lateCompletions == nil {
		return
	}
	late := store.LateCompletion{Claim: f.claim(), Response: done.Response, At: time.Now()}
	if err := f.persist(func(ctx context.Context) error { return f.guard.lateCompletions.AddLateCompletion(ctx, late) }); err != nil {
		f.guard.storeFailed(f.base, f.op.name, "add late completion", err)
	}
}

func (f *execution) settleRelease(reason string) result {
	err := f.persist(func(ctx context.Context) error { return f.guard.store.Release(ctx, f.claim(), reason) })
	if err != nil {
		// The lease runs out and the record becomes unknown: safe, but somebody has to settle it.
		f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
		if l, ok := f.resolved(err); ok {
			return l
		}
		if f.settings.onLost == store.LostResume {
			// Or somebody goes on with it, or has done so already: nobody may be told that nothing is done.
			f.settled(store.StateInProgress, err)
			return f.goesOn()
		}
		f.settled(store.StateUnknown, err)
		return result{kind: resultReleased}
	}
	f.settled(store.StateRetryable, nil)
	return result{kind: resultReleased}
}

func (f *execution) settleUnknown(cause error) result {
	f.logUnknown(cause)
	ctx := f.storeContext(new(lazyContext), time.Now())
	defer ctx.release()
	if p := f.op.withProvider(store.Checkpoint{}); p.ProviderID != "" {
		// Whoever settles it finds it by that. Should this fail, it can be found by the downstream key.
		_ = f.guard.store.Checkpoint(ctx, f.claim(), p)
	}
	if err := f.guard.store.Abandon(ctx, f.claim(), cause.Error()); err != nil {
		// The sweeper says the same when the lease has run out.
		f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
		if l, ok := f.resolved(err); ok {
			return l
		}
		f.guard.storeFailed(f.base, f.op.name, "abandon", err)
	}
	f.settled(store.StateUnknown, cause)
	return result{kind: resultUnknown, err: cause}
}

// logUnknown tells an operator what waits to be settled.
func (f *execution) logUnknown(cause error) {
	f.guard.config.Logger.ErrorContext(f.base, "onceward: outcome unknown",
		"operation", f.op.name, "key_hash", f.res.ID.Hash(), "attempt", f.op.attempt, "error", cause)
}

func (f *execution) settled(state store.State, err error) {
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, SettledEvent{ID: f.res.ID, Operation: f.op.name, Attempt: f.op.attempt, State: state, Err: err})
	}
}

// final reports whether an error will not go away by trying again.
func final(err error) bool {
	return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrUnreadable) || errors.Is(err, store.ErrInvalidEvent)
}

// The pauses between tries to settle.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// once makes a write for which there is no time left to repeat it.
func (f *execution) once(write func(ctx context.Context) error) error {
	ctx := f.storeContext(new(lazyContext), time.Now())
	defer ctx.release()
	return write(ctx)
}

// persist repeats a write until it is answered, or until settling is given up.
func (f *execution) persist(write func(ctx context.Context) error) error {
	deadline := time.Now().Add(f.guard.config.SettleTimeout)
	pause := firstPause
	for {
		err := f.once(write)
		if err == nil || final(err) || !time.Now().Add(pause).Before(deadline) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// transact executes inside a transaction of the store: nothing to reserve, keep or abandon.
func (f *execution) transact(w runner) result {
	t := &transaction{execution: f, runner: w}
	sent := time.Now()
	ctx := f.storeContext(&f.reserveCtx, sent)
	v, err := f.guard.transactor.Transact(ctx, &f.res, t.work)
	ctx.release()
	if err == nil {
		err = t.err
	}
	if err == nil && v.Decision != store.DecisionExecute {
		err = v.Check(&f.res)
		f.decided(&v, sent)
	}
	return t.result(&v, err)
}

// transaction is one call of a [store.Transactor].
type transaction struct {
	*execution
	runner runner
	ran    bool
	left   bool
	end    outcome
	err    error
}

// work runs the handler inside the transaction. It starts afresh each time it is called.
func (t *transaction) work(ctx context.Context, v store.Verdict) store.Settlement {
	t.end, t.err, t.ran, t.left = outcome{}, v.Check(&t.res), true, t.execution.left()
	if t.err != nil || t.left {
		return store.Settlement{Action: store.TxRollback}
	}
	t.decided(&v, time.Now())
	if t.err = t.begin(&v); t.err != nil {
		return store.Settlement{Action: store.TxRollback}
	}
	workCtx := new(lazyContext).start(context.WithoutCancel(ctx), time.Now().Add(t.settings.deadline), store.ErrDeadline)
	workCtx.op = &t.op
	t.end = t.runner.work(workCtx, &t.op)
	workCtx.release()
	switch {
	case t.end.kind != outcomeAnswer:
		return store.Settlement{Action: store.TxRollback}
	case t.end.undoWork:
		return store.Settlement{Action: store.TxCommitAnswer, Completion: t.op.completion(t.end.response)}
	default:
		return store.Settlement{Action: store.TxCommit, Completion: t.op.completion(t.end.response)}
	}
}

// result says what became of the transaction.
func (t *transaction) result(v *store.Verdict, err error) result {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		t.logUnknown(err)
		t.settled(store.StateUnknown, err)
		return result{kind: resultUnknown, err: err}
	case errors.Is(err, store.ErrWorkRefused):
		t.guard.config.Logger.ErrorContext(t.base, "onceward: the database refused what the handler wrote", "operation", t.op.name, "error", err)
		return result{kind: resultFailed, err: err}
	case err != nil:
		if !errors.Is(err, store.ErrUnreadable) && !errors.Is(err, store.ErrDeadline) {
			t.guard.storeFailed(t.base, t.op.name, "transact", err)
		}
		return result{kind: resultFailed, err: err}
	case v.Decision != store.DecisionExecute:
		return decidedResult(v)
	case !t.ran:
		return result{kind: resultFailed, err: &store.UnreadableError{Reason: "the store granted an execution and did not call it"}}
	case t.left:
		return result{kind: resultCallerLeft}
	case t.end.kind != outcomeAnswer:
		return result{kind: resultReleased}
	default:
		t.settled(store.StateCompleted, nil)
		return result{kind: resultAnswer, response: &t.end.response, expires: v.Record.ExpiresAt}
	}
}
