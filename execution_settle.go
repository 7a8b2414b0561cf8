package onceward

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/store"
)

// settle writes the outcome into the store before the caller is told (E7).
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
	if err != nil && !final(err) {
		expires, err = f.completeAgain(err)
	}
	if err != nil {
		return f.notCompleted(err)
	}
	return f.completed(expires)
}

// completed is the result of an attempt whose answer is durable.
func (f *execution) completed(expires time.Time) result {
	f.settled(store.StateCompleted, nil)
	return result{kind: resultAnswer, response: &f.done.Response, expires: expires}
}

// notCompleted is the result of an execution whose answer was not stored.
func (f *execution) notCompleted(err error) result {
	switch {
	case !final(err) && f.settings.onLost == store.LostResume:
		// A later attempt goes on from the recovery point, and makes the same answer. The store was asked for long enough.
		f.storeFailed("complete", err)
		return f.settleSuspend(f.once)
	case !errors.Is(err, store.ErrFenced):
		return f.settleUnknown(err)
	}
	f.keepLate()
	if l, ok := f.overtaken(err); ok {
		return l
	}
	return f.unknown(err)
}

// overtaken tells of a write that was refused, and is the result of an owner that lost to an answer of the same request (S6).
// An answer to another request, which took the key after it was busted, is none of its business.
func (f *execution) overtaken(err error) (result, bool) {
	f.guard.noteFenced(f.base, f.res.ID, f.op.name, err)
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
func (f *execution) completeAgain(err error) (expires time.Time, _ error) {
	f.storeFailed("complete", err)
	err = f.persist(func(ctx context.Context) (err error) {
		expires, err = f.guard.store.Complete(ctx, f.claim(), &f.done)
		return err
	})
	return expires, err
}

// keepLate keeps an answer that came too late, as evidence for a reconciler or an operator (S6).
func (f *execution) keepLate() {
	if f.guard.lateCompletions == nil {
		return
	}
	late := store.LateCompletion{Claim: f.claim(), Response: f.done.Response, At: time.Now()}
	if err := f.persist(func(ctx context.Context) error { return f.guard.lateCompletions.AddLateCompletion(ctx, late) }); err != nil {
		f.storeFailed("add late completion", err)
	}
}

func (f *execution) settleRelease(reason string) result {
	err := f.persist(func(ctx context.Context) error { return f.guard.store.Release(ctx, f.claim(), reason) })
	if err != nil {
		// The lease runs out and the record becomes unknown: safe, but it has to be settled.
		if l, ok := f.overtaken(err); ok {
			return l
		}
		if f.settings.onLost == store.LostResume {
			// Or a later attempt goes on with it, or has done so already: no caller may be told that nothing is done.
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
	err := f.once(func(ctx context.Context) error {
		if p := f.op.withProvider(store.Checkpoint{}); p.ProviderID != "" {
			// A reconciler finds it by that. Should this fail, it can be found by the downstream key.
			_ = f.guard.store.Checkpoint(ctx, f.claim(), p)
		}
		return f.guard.store.Abandon(ctx, f.claim(), cause.Error())
	})
	if err != nil {
		// The sweeper says the same when the lease has run out.
		if l, ok := f.overtaken(err); ok {
			return l
		}
		f.storeFailed("abandon", err)
	}
	return f.unknown(cause)
}

// unknown is the result of an attempt whose outcome has to be settled from outside. An operator is told.
func (f *execution) unknown(cause error) result {
	f.logError("onceward: outcome unknown", cause)
	f.settled(store.StateUnknown, cause)
	return result{kind: resultUnknown, err: cause}
}

// logError tells an operator about this attempt.
func (f *execution) logError(message string, err error) {
	f.guard.config.Logger.ErrorContext(f.base, message,
		"operation", f.op.name, "key_hash", f.res.ID.Hash(), "attempt", f.op.attempt, "error", err)
}

func (f *execution) storeFailed(call string, err error) {
	f.guard.storeFailed(f.base, f.op.name, call, err)
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

// The pauses between attempts to settle.
const (
	minSettleBackoff = 10 * time.Millisecond
	maxSettleBackoff = time.Second
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
	pause := minSettleBackoff
	for {
		err := f.once(write)
		if err == nil || final(err) || !time.Now().Add(pause).Before(deadline) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, maxSettleBackoff)
	}
}
