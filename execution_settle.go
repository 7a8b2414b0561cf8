package onceward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// settle writes the outcome into the store before the caller is told (E7).
func (e *execution) settle(end outcome) result {
	end.reason = strings.Clone(end.reason) // the text of a handler's error may lie in memory that is used again
	switch {
	case end.kind == outcomeAnswer:
		return e.settleAnswer(end.response)
	case end.kind == outcomeSuspend:
		return e.settleSuspend(e.persist)
	case end.kind == outcomeRelease && e.op.speaksForAll():
		return e.settleRelease(end.reason)
	default:
		// A resumed attempt that did nothing says nothing about the attempts before it.
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
		expires, err = e.completeAgain(err)
	}
	if err != nil {
		return e.notCompleted(err)
	}
	return e.completed(expires)
}

// completed is the result of an attempt whose answer is durable.
func (e *execution) completed(expires time.Time) result {
	e.settled(store.StateCompleted, nil)
	response := &e.done.Response
	if e.own != nil {
		response = e.own
	}
	return result{kind: resultAnswer, response: response, expires: expires}
}

// notCompleted is the result of an execution whose answer was not stored.
func (e *execution) notCompleted(err error) result {
	switch {
	case !final(err) && e.settings.onLost == store.LostResume:
		// A later attempt goes on from the recovery point, and makes the same answer. The store was asked for long
		// enough.
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

// overtaken tells of a write that was refused, and is the result of an owner that lost to an answer of the same request
// (S6). An answer to another request, which took the key after it was busted, is none of its business.
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

// completeAgain repeats a completion that failed until it is answered or given up. Repeating is safe: a completion that
// already happened succeeds.
func (e *execution) completeAgain(err error) (expires time.Time, _ error) {
	e.storeFailed("complete", err)
	err = e.persist("complete", func(ctx context.Context) (err error) {
		expires, err = e.guard.store.Complete(ctx, e.claim(), &e.done)
		return err
	})
	return expires, err
}

// keepLate keeps an answer that came too late, as evidence for a reconciler or an operator (S6).
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

// settleRelease says that nothing was done and, of a request that was rejected, that it counts for nothing.
func (e *execution) settleRelease(reason string) result {
	left, call := store.StateRetryable, "release"
	write := func(ctx context.Context) error { return e.guard.store.Release(ctx, e.claim(), reason) }
	if e.op.rejects() {
		left, call = store.StateNone, "reject"
		write = func(ctx context.Context) error { return e.guard.store.Reject(ctx, e.claim()) }
	}
	err := e.persist(call, write)
	if err != nil {
		// The lease runs out and the record becomes unknown: safe, but it has to be settled.
		if res, ok := e.overtaken(err); ok {
			return res
		}
		if e.settings.onLost == store.LostResume {
			// Or a later attempt goes on with it, or has done so already: no caller may be told that nothing is done.
			e.settled(store.StateInProgress, err)
			return e.goesOn()
		}
		e.logError("onceward: outcome unknown", fmt.Errorf("that nothing was done could not be stored: %w", err))
		e.unwritten(store.StateUnknown, err)
		return result{kind: resultReleased}
	}
	e.settled(left, nil)
	return result{kind: resultReleased, nothingDone: !e.op.mayHaveSent()}
}

// undone is the result of a transaction that was rolled back. Of a request that was rejected nothing may count, nor
// what an earlier attempt at it released without having sent anything.
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
	return result{kind: resultReleased, nothingDone: !e.op.mayHaveSent()}
}

// forget rejects the record that a transaction has found and left as it was. One that has changed since is another
// attempt's, whose token is none that was used when this one was granted.
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
			// A reconciler finds it by that. Should this fail, it can be found by the downstream key.
			_ = e.guard.store.Checkpoint(ctx, e.claim(), p)
		}
		return e.guard.store.Abandon(ctx, e.claim(), cause.Error())
	})
	if err != nil {
		// The sweeper says the same when the lease has run out.
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

// unknown is the result of an attempt whose outcome has to be settled from outside, and whose record does not say so,
// or not by its doing. An operator is told.
func (e *execution) unknown(cause error) result {
	e.logError("onceward: outcome unknown", cause)
	e.unwritten(store.StateUnknown, cause)
	return result{kind: resultUnknown, err: cause}
}

// logError tells an operator about this attempt.
func (e *execution) logError(message string, err error) {
	e.guard.config.Logger.ErrorContext(e.base, message,
		"operation", e.op.name, "key_hash", e.reservation.ID.Hash(), "attempt", strconv.FormatInt(e.op.attempt, 10),
		"error", err)
}

func (e *execution) storeFailed(call string, err error) {
	e.guard.storeFailed(e.base, e.op.name, call, err)
}

// called tells the observer of a call to the store.
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

// unwritten is settled for a state that the record was not brought into.
func (e *execution) unwritten(state store.State, err error) {
	if e.guard.config.Observer != nil {
		e.guard.observe(e.base, SettledEvent{
			ID: e.reservation.ID, Operation: e.op.name, Attempt: e.op.attempt, State: state, Unwritten: true, Err: err,
		})
	}
}

// final reports whether an error will not go away by trying again.
func final(err error) bool {
	return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrUnreadable) ||
		errors.Is(err, store.ErrInvalidEvent)
}

// The pauses between attempts to settle.
const (
	minSettleBackoff = 10 * time.Millisecond
	maxSettleBackoff = time.Second
)

// once makes a write for which there is no time left to repeat it. Its context tells of the operation: what belongs to
// one that runs goes through a circuit breaker.
func (e *execution) once(call string, write func(ctx context.Context) error) error {
	sent := time.Now()
	ctx := e.storeContext(&lazyContext{op: &e.op}, sent)
	defer ctx.release()
	err := write(ctx)
	e.called(call, sent, err)
	return err
}

// persist repeats a write until it is answered, or until settling is given up.
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
