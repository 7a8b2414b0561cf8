package onceward

import (
	"context"
	"errors"
	"time"
)

// settle writes how an execution ended into the store, before anybody is told (E7).
func (f *flight) settle(end ending) landing {
	switch {
	case end.kind == endAnswer:
		return f.settleAnswer(end.response)
	case end.kind == endSuspend:
		return f.settleSuspend(f.persist)
	case end.kind == endRelease && (!f.op.resumed || f.op.ending.Load() == endedNeverExecuted):
		return f.settleRelease(end.reason)
	default:
		// A resumed attempt that did nothing says nothing about the attempts before it.
		return f.settleUnknown(errors.New(end.reason))
	}
}

func (f *flight) claim() Claim { return Claim{ID: f.res.ID, Attempt: f.op.attempt} }

func (f *flight) settleAnswer(response Response) landing {
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
	f.settled(StateCompleted, nil)
	return landing{kind: landedAnswer, response: &f.done.Response, expires: expires}
}

// notCompleted lands a flight whose answer was not stored.
func (f *flight) notCompleted(err error) landing {
	switch {
	case !final(err) && f.settings.onLost == Resume:
		// A later attempt goes on from the recovery point, and makes the same answer. The store was asked for long enough.
		f.guard.storeFailed(f.base, f.op.name, "complete", err)
		return f.settleSuspend(f.once)
	case !errors.Is(err, ErrFenced):
		return f.settleUnknown(err)
	}
	f.refused(&f.done, err)
	if l, ok := f.resolved(err); ok {
		return l
	}
	f.settled(StateUnknown, err)
	return landing{kind: landedUnknown, err: err}
}

// resolved is the landing of an owner that lost to an answer of the same request (S6). An answer to another request, which
// took the key after it was busted, is none of its business.
func (f *flight) resolved(err error) (landing, bool) {
	var fenced *FencedError
	if !errors.As(err, &fenced) || fenced.Response == nil {
		return landing{}, false
	}
	if same, err := sameRequest(&fenced.Fingerprint, f.res.Fingerprints); err != nil || !same {
		return landing{}, false
	}
	return landing{kind: landedStored, response: fenced.Response, expires: fenced.ExpiresAt}, true
}

// completeAgain repeats a completion that failed until it is answered or given up. Repeating is safe: a completion that
// already happened succeeds.
func (f *flight) completeAgain(done *Completion, err error) (expires time.Time, _ error) {
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
func (f *flight) refused(done *Completion, err error) {
	f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
	if f.guard.findings == nil {
		return
	}
	finding := Finding{Claim: f.claim(), Response: done.Response, At: time.Now()}
	if err := f.persist(func(ctx context.Context) error { return f.guard.findings.AddFinding(ctx, finding) }); err != nil {
		f.guard.storeFailed(f.base, f.op.name, "add finding", err)
	}
}

func (f *flight) settleRelease(reason string) landing {
	err := f.persist(func(ctx context.Context) error { return f.guard.store.Release(ctx, f.claim(), reason) })
	if err != nil {
		// The lease runs out and the record becomes unknown: safe, but somebody has to settle it.
		f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
		if l, ok := f.resolved(err); ok {
			return l
		}
		if f.settings.onLost == Resume {
			// Or somebody goes on with it, or has done so already: nobody may be told that nothing is done.
			f.settled(StateInProgress, err)
			return f.goesOn()
		}
		f.settled(StateUnknown, err)
		return landing{kind: landedReleased}
	}
	f.settled(StateRetryable, nil)
	return landing{kind: landedReleased}
}

func (f *flight) settleUnknown(cause error) landing {
	f.logUnknown(cause)
	ctx := f.storeContext(new(lazyContext), time.Now())
	defer ctx.release()
	if p := f.op.withProvider(Checkpoint{}); p.ProviderID != "" {
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
	f.settled(StateUnknown, cause)
	return landing{kind: landedUnknown, err: cause}
}

// logUnknown tells an operator what waits to be settled.
func (f *flight) logUnknown(cause error) {
	f.guard.config.Logger.ErrorContext(f.base, "onceward: outcome unknown",
		"operation", f.op.name, "key_hash", f.res.ID.Hash(), "attempt", f.op.attempt, "error", cause)
}

func (f *flight) settled(state State, err error) {
	if f.guard.config.Observer != nil {
		f.guard.observe(f.base, SettledEvent{ID: f.res.ID, Operation: f.op.name, Attempt: f.op.attempt, State: state, Err: err})
	}
}

// final reports whether an error will not go away by trying again.
func final(err error) bool {
	return errors.Is(err, ErrFenced) || errors.Is(err, ErrUnreadable) || errors.Is(err, ErrInvalidEvent)
}

// The pauses between tries to settle.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// once makes a write for which there is no time left to repeat it.
func (f *flight) once(write func(ctx context.Context) error) error {
	ctx := f.storeContext(new(lazyContext), time.Now())
	defer ctx.release()
	return write(ctx)
}

// persist repeats a write until it is answered, or until settling is given up.
func (f *flight) persist(write func(ctx context.Context) error) error {
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
func (f *flight) transact(w worker) landing {
	t := &transaction{flight: f, worker: w}
	sent := time.Now()
	ctx := f.storeContext(&f.reserveCtx, sent)
	v, err := f.guard.transactor.Transact(ctx, &f.res, t.work)
	ctx.release()
	if err == nil {
		err = t.err
	}
	if err == nil && v.Decision != DecisionExecute {
		err = checkVerdict(&v, &f.res)
		f.decided(&v, sent)
	}
	return t.landing(&v, err)
}

// transaction is one call of a [Transactor].
type transaction struct {
	*flight
	worker worker
	ran    bool
	left   bool
	end    ending
	err    error
}

// work runs the handler inside the transaction. It starts afresh each time it is called.
func (t *transaction) work(ctx context.Context, v Verdict) Settlement {
	t.end, t.err, t.ran, t.left = ending{}, checkVerdict(&v, &t.res), true, t.flight.left()
	if t.err != nil || t.left {
		return Settlement{Ending: Rollback}
	}
	t.decided(&v, time.Now())
	if t.err = t.begin(&v); t.err != nil {
		return Settlement{Ending: Rollback}
	}
	workCtx := new(lazyContext).start(context.WithoutCancel(ctx), time.Now().Add(t.settings.deadline), ErrDeadline)
	workCtx.op = &t.op
	t.end = t.worker.work(workCtx, &t.op)
	workCtx.release()
	switch {
	case t.end.kind != endAnswer:
		return Settlement{Ending: Rollback}
	case t.end.undoWork:
		return Settlement{Ending: CommitAnswer, Completion: t.op.completion(t.end.response)}
	default:
		return Settlement{Ending: Commit, Completion: t.op.completion(t.end.response)}
	}
}

// landing says what became of the transaction.
func (t *transaction) landing(v *Verdict, err error) landing {
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		t.logUnknown(err)
		t.settled(StateUnknown, err)
		return landing{kind: landedUnknown, err: err}
	case errors.Is(err, ErrWorkRefused):
		t.guard.config.Logger.ErrorContext(t.base, "onceward: the database refused what the handler wrote", "operation", t.op.name, "error", err)
		return landing{kind: landedFailed, err: err}
	case err != nil:
		if !errors.Is(err, ErrUnreadable) && !errors.Is(err, ErrDeadline) {
			t.guard.storeFailed(t.base, t.op.name, "transact", err)
		}
		return landing{kind: landedFailed, err: err}
	case v.Decision != DecisionExecute:
		return landed(v)
	case !t.ran:
		return landing{kind: landedFailed, err: &UnreadableError{Reason: "the store granted an execution and did not call it"}}
	case t.left:
		return landing{kind: landedLeft}
	case t.end.kind != endAnswer:
		return landing{kind: landedReleased}
	default:
		t.settled(StateCompleted, nil)
		return landing{kind: landedAnswer, response: &t.end.response, expires: v.Record.ExpiresAt}
	}
}
