package onceward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// settle writes the outcome into the store before the caller gets an answer (rule E7: durable first, then sent).
func (e *execution) settle(end outcome) result {
	end.reason = cutReason(end.reason)
	switch {
	case end.kind == outcomeAnswer:
		return e.settleAnswer(end.response)
	case end.kind == outcomeSuspend:
		return e.settleSuspend(e.persist)
	case end.kind == outcomeRelease && e.op.coversEarlier():
		return e.settleRelease(end.reason)
	default:
		// A resumed attempt that did nothing does not prove that the attempts before it did nothing.
		return e.settleUnknown(errors.New(end.reason))
	}
}

func (e *execution) claim() store.Claim {
	return store.Claim{ID: e.reservation.ID, Attempt: e.op.attempt}
}

func (e *execution) settleAnswer(response store.Response) result {
	e.keep(response)
	sent := time.Now()
	ctx := e.storeContext(&e.settleCtx, sent)
	expires, err := e.guard.store.Complete(ctx, e.claim(), &e.done)
	ctx.release()
	e.called("complete", sent, err)
	if err != nil && !final(err) {
		expires, err = e.repeatComplete(err)
	}
	if err != nil {
		return e.notCompleted(err)
	}
	return e.completed(expires)
}

// completed returns the result of an attempt whose answer is durable.
func (e *execution) completed(expires time.Time) result {
	e.settled(store.StateCompleted, nil)
	response := &e.done.Response
	if e.own != nil {
		response = e.own
	}
	return result{kind: resultAnswer, response: response, expires: expires}
}

// notCompleted returns the result of an execution whose answer was not stored.
func (e *execution) notCompleted(err error) result {
	switch {
	case !final(err) && e.settings.onLost == store.LostResume:
		// The store was retried for long enough. A later attempt continues from the recovery point, and makes the same
		// answer.
		e.storeFailed("complete", err)
		return e.settleSuspend(e.once)
	case !errors.Is(err, store.ErrFenced):
		return e.settleUnknown(err)
	}
	e.keepLate()
	if res, ok := e.overtaken(err); ok {
		return res
	}
	return e.unknown(err)
}

// overtaken reports a write that was refused. If the key has an answer to the same request, that answer is the result
// (rule S6: a fenced owner sends the stored answer). An answer to another request, which took the key after its record
// was deleted, is not used.
func (e *execution) overtaken(err error) (result, bool) {
	e.guard.noteFenced(e.base, e.reservation.ID, e.op.name, err)
	var fenced *store.FencedError
	if !errors.As(err, &fenced) || fenced.Response == nil || fenced.Response.IsSealed() {
		return result{}, false
	}
	if same, err := fenced.Fingerprint.Matches(e.reservation.Fingerprints); err != nil || !same {
		return result{}, false
	}
	return result{kind: resultStored, response: fenced.Response, expires: fenced.ExpiresAt}, true
}

// repeatComplete repeats a completion that failed until it succeeds or is given up. Repeating is safe: a completion
// that already happened succeeds.
func (e *execution) repeatComplete(err error) (expires time.Time, _ error) {
	e.storeFailed("complete", err)
	err = e.persist("complete", func(ctx context.Context) (err error) {
		expires, err = e.guard.store.Complete(ctx, e.claim(), &e.done)
		return err
	})
	return expires, err
}

// keepLate stores an answer that came too late, as evidence for a reconciler or an operator (rule S6).
func (e *execution) keepLate() {
	if e.guard.lateCompletions == nil {
		return
	}
	late := store.LateCompletion{Claim: e.claim(), Response: e.done.Response, At: time.Now()}
	err := e.persist("add late completion", func(ctx context.Context) error {
		return e.guard.lateCompletions.AddLateCompletion(ctx, late)
	})
	if err != nil {
		e.storeFailed("add late completion", err)
	}
}

// settleRelease records that nothing was done. For a rejected request it removes the record.
func (e *execution) settleRelease(reason string) result {
	state, call := store.StateRetryable, "release"
	write := func(ctx context.Context) error { return e.guard.store.Release(ctx, e.claim(), reason) }
	if e.op.rejects() {
		state, call = store.StateNone, "reject"
		write = func(ctx context.Context) error { return e.guard.store.Reject(ctx, e.claim()) }
	}
	err := e.persist(call, write)
	if err != nil {
		// The lease runs out and the record becomes unknown: safe, but it has to be settled.
		if res, ok := e.overtaken(err); ok {
			return res
		}
		if e.settings.onLost == store.LostResume {
			// A later attempt may continue the operation, or has already continued it: the caller must not get the
			// answer that nothing was done.
			e.settled(store.StateInProgress, err)
			return e.resumesLater()
		}
		e.logError("onceward: outcome unknown", fmt.Errorf("could not store that nothing was done: %w", err))
		e.unwritten(store.StateUnknown, err)
		return result{kind: resultReleased}
	}
	e.settled(state, nil)
	return result{kind: resultReleased, nothingDone: !e.op.mayHaveSent() && !e.passedOn}
}

// undone returns the result of a transaction that was rolled back. For a rejected request it also removes a record that
// an earlier attempt released without having sent anything.
func (e *execution) undone() result {
	if e.op.rejects() {
		var err error
		if e.op.origin != store.OriginCreated {
			if err = e.persist("reject", e.forget); err != nil {
				e.storeFailed("reject", err)
			}
		}
		e.settled(store.StateNone, err)
	}
	return result{kind: resultReleased, nothingDone: !e.op.mayHaveSent() && !e.passedOn}
}

// forget rejects the record that a transaction has found and not changed. A record that has changed since belongs to
// another attempt, whose token is this attempt's token or a larger one.
func (e *execution) forget(ctx context.Context) error {
	rec, err := e.guard.store.Get(ctx, e.reservation.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	same, err := rec.Fingerprint.Matches(e.reservation.Fingerprints)
	if rec.State != store.StateRetryable || rec.Attempt >= e.op.attempt || rec.MayHaveSent() || !same || err != nil {
		return err
	}
	err = e.guard.store.Reject(ctx, store.Claim{ID: rec.ID, Attempt: rec.Attempt})
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	return err
}

func (e *execution) settleUnknown(cause error) result {
	err := e.once("abandon", func(ctx context.Context) error {
		if p := e.op.kept(store.Checkpoint{}); p.ProviderID != "" {
			// A reconciler finds the effect by this id. If the write fails, the reconciler finds the effect by the
			// downstream key.
			_ = e.guard.store.Checkpoint(ctx, e.claim(), p)
		}
		return e.guard.store.Abandon(ctx, e.claim(), cause.Error())
	})
	if err != nil {
		// The sweeper does the same when the lease has run out.
		if res, ok := e.overtaken(err); ok {
			return res
		}
		e.storeFailed("abandon", err)
		return e.unknown(cause)
	}
	e.logError("onceward: outcome unknown", cause)
	e.settled(store.StateUnknown, cause)
	return result{kind: resultUnknown, err: cause}
}

// unknown logs and reports an attempt whose outcome must be settled from outside, and returns its result. The record
// does not show the unknown state yet, or another writer set it.
func (e *execution) unknown(cause error) result {
	e.logError("onceward: outcome unknown", cause)
	e.unwritten(store.StateUnknown, cause)
	return result{kind: resultUnknown, err: cause}
}

// logError logs an error of this attempt.
func (e *execution) logError(message string, err error) {
	e.guard.config.Logger.ErrorContext(e.base, message,
		"operation", e.op.name, "key_hash", e.reservation.ID.Hash(), "attempt", strconv.FormatInt(e.op.attempt, 10),
		"error", err)
}

func (e *execution) storeFailed(call string, err error) {
	e.guard.storeFailed(e.base, e.op.name, call, err)
}

// called reports a call to the store to the observer.
func (e *execution) called(call string, sent time.Time, err error) {
	if e.guard.config.Observer != nil {
		e.guard.observe(e.base, StoreCalledEvent{
			ID: e.reservation.ID, Operation: e.op.name, Attempt: e.op.attempt, Call: call, Elapsed: time.Since(sent), Err: err,
		})
	}
}

func (e *execution) settled(state store.State, err error) {
	if e.guard.config.Observer != nil {
		e.guard.observe(e.base, SettledEvent{
			ID: e.reservation.ID, Operation: e.op.name, Attempt: e.op.attempt, State: state, Err: err,
		})
	}
}

// unwritten reports a state that could not be written to the record.
func (e *execution) unwritten(state store.State, err error) {
	if e.guard.config.Observer != nil {
		e.guard.observe(e.base, SettledEvent{
			ID: e.reservation.ID, Operation: e.op.name, Attempt: e.op.attempt, State: state, Unwritten: true, Err: err,
		})
	}
}

// final reports whether retrying cannot remove an error.
func final(err error) bool {
	return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrUnreadable) ||
		errors.Is(err, store.ErrInvalidEvent)
}

// These are the pauses between attempts to settle.
const (
	minSettleBackoff = 10 * time.Millisecond
	maxSettleBackoff = time.Second
)

// once makes a write for which there is no time to retry. Its context carries the operation, because a circuit breaker
// lets calls of a running operation through.
func (e *execution) once(call string, write func(ctx context.Context) error) error {
	sent := time.Now()
	ctx := e.storeContext(&lazyContext{op: &e.op}, sent)
	defer ctx.release()
	err := write(ctx)
	e.called(call, sent, err)
	return err
}

// persist repeats a write until the store answers, or until settling is given up.
func (e *execution) persist(call string, write func(ctx context.Context) error) error {
	deadline := time.Now().Add(e.guard.config.SettleTimeout)
	for failures := 1; ; failures++ {
		err := e.once(call, write)
		if err == nil || final(err) {
			return err
		}
		pause := backoff.Exponential(minSettleBackoff, maxSettleBackoff, failures)
		if !time.Now().Add(pause).Before(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}
