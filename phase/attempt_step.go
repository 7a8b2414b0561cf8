package phase

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
)

// local does a local step.
func (a *attempt[T]) local(ctx context.Context, s *Step[T]) error {
	if !a.op.SharesTransactions() {
		return a.localApart(ctx, s)
	}
	var next envelope
	err := a.op.CheckpointTx(ctx, func(ctx context.Context) (p store.Checkpoint, err error) {
		if next, err = a.do(ctx, s); err != nil {
			return p, err
		}
		return a.checkpoint(next)
	})
	if err != nil {
		return a.localFailed(err)
	}
	a.state, a.recorded = next, true
	return nil
}

// do runs a local step on a copy of the data.
func (a *attempt[T]) do(ctx context.Context, s *Step[T]) (envelope, error) {
	data, err := a.data()
	if err != nil {
		return envelope{}, err
	}
	if err := s.local(part.WithStep(ctx, s.name), data); err != nil {
		return envelope{}, err
	}
	return a.after(s, data)
}

// localApart does a local step on a store that shares no transactions. That it may have begun is recorded before the
// first.
func (a *attempt[T]) localApart(ctx context.Context, s *Step[T]) error {
	if !a.recorded {
		if err := a.record(a.state); err != nil {
			return a.localFailed(err)
		}
	}
	next, err := a.do(ctx, s)
	if err == nil {
		err = a.record(next)
	}
	if err != nil {
		return a.localFailed(err)
	}
	return nil
}

// localFailed ends the attempt at a local step: with an answer, or for a later attempt, which finds in the store
// whether the step was committed.
func (a *attempt[T]) localFailed(err error) error {
	if asFinished(err) != nil {
		return err
	}
	if errors.Is(err, store.ErrOutcomeUnknown) && errors.Is(err, store.ErrTxOwned) {
		a.unknown(err) // the step itself committed something, and would do so again
		return err
	}
	// It may have been committed, or another attempt may have gone on: that is not for this attempt to say.
	inDoubt := errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrOutcomeUnknown)
	if inDoubt || a.recorded && errors.Is(err, store.ErrUnavailable) {
		a.suspend(inDoubt) // the fault is not the step's: it does not count as an attempt
		return err
	}
	if onceward.IsRejected(err) {
		return rejection(err)
	}
	a.fail(err)
	return err
}

// suspend leaves the operation to a later attempt, and says that this one was not lost. In doubt the store is left
// alone: what stands there is not for this attempt to change.
func (a *attempt[T]) suspend(inDoubt bool) {
	if a.state.Lost > 0 && !inDoubt {
		found := a.state
		found.Lost = 0
		_ = a.record(found) // should this fail, the attempt counts as lost
	}
	a.op.Suspend(a.MinBackoff)
}

// external does an external step: the intent, the call, the result.
func (a *attempt[T]) external(ctx context.Context, s *Step[T]) error {
	if a.state.Intent == s.name {
		return a.again(ctx, s) // an earlier attempt may have made the call
	}
	intended := a.state
	intended.Intent, intended.By = s.name, a.op.Attempt()
	if err := a.record(intended); err != nil {
		return a.localFailed(err)
	}
	a.intends = true
	return a.makeCall(ctx, s)
}

// again deals with a call that may have been made.
func (a *attempt[T]) again(ctx context.Context, s *Step[T]) error {
	if s.lookUp == nil && !s.repeat {
		err := fmt.Errorf("phase: an earlier attempt was lost in step %s; it is not known whether its call was made", s.name)
		a.unknown(err)
		return err
	}
	if s.lookUp == nil {
		return a.makeCall(ctx, s)
	}
	data, err := a.data()
	if err != nil {
		return a.localFailed(err)
	}
	err = s.lookUp(ctx, a.op.DownstreamKey(s.name), data)
	switch {
	case err == nil:
		return a.succeeded(s, data)
	case errors.Is(err, ErrNotFound) && s.repeat:
		return a.makeCall(ctx, s)
	case errors.Is(err, ErrNotFound):
		a.unknown(err)
		return err
	case asFinished(err) != nil, errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrUnavailable),
		errors.Is(err, store.ErrOutcomeUnknown):
		return a.localFailed(err)
	default:
		err = &lookUpError{step: s.name, failure: a.state.Failure, cause: err}
		a.fail(err)
		return err
	}
}

// lookUpError is a look-up that failed. It says nothing of the call that it asked about: a refusal to answer is no
// refusal of the call. So the cause can be read, and is not unwrapped.
type lookUpError struct {
	step    string
	failure string // of the step itself, if it is known
	cause   error
}

// Error says what the step failed with, and apart from that why the question failed.
func (e *lookUpError) Error() string {
	failure := e.failure
	if failure == "" {
		failure = "an earlier attempt was lost in it"
	}
	return fmt.Sprintf("phase: step %s is in doubt (%s), and the question about its call failed: %v",
		e.step, failure, e.cause)
}

// makeCall makes the call, if the attempt still holds its right to.
func (a *attempt[T]) makeCall(ctx context.Context, s *Step[T]) error {
	data, err := a.data()
	if err != nil {
		a.withdraw()
		return a.localFailed(err)
	}
	if err := a.mayGoOn(ctx); err != nil {
		if a.withdraw() {
			_ = a.record(a.state) // should this fail, the next attempt is in doubt: that is safe
		}
		a.op.Suspend(a.MinBackoff)
		return err
	}
	if err := s.call(ctx, a.op.DownstreamKey(s.name), data); err != nil {
		return a.callFailed(s, err)
	}
	return a.succeeded(s, data)
}

// withdraw takes back an intent of which the attempt knows that it came to nothing. If the intent is not its own it
// knows that only of itself: an earlier attempt may have made the call, and the intent stays.
func (a *attempt[T]) withdraw() bool {
	if !a.intends {
		return false
	}
	a.state, a.intends = a.state.withdrawn(), false
	return true
}

// succeeded records the result of a call. Should that fail, the intent stands, and the next attempt deals with it.
func (a *attempt[T]) succeeded(s *Step[T], data *T) error {
	next, err := a.after(s, data)
	if err == nil {
		err = a.record(next)
	}
	if err == nil {
		return nil
	}
	if s.repeat || s.lookUp != nil {
		return a.localFailed(err)
	}
	a.unknown(err)
	return err
}

// callFailed judges a call without a result.
func (a *attempt[T]) callFailed(s *Step[T], err error) error {
	switch {
	case asFinished(err) != nil:
		return err
	case onceward.IsRejected(err) && a.withdraw():
		_ = a.record(a.state) // should this fail, and the answer not be stored, the next attempt is in doubt: that is safe
		return rejection(err)
	case onceward.IsNotExecuted(err) && a.withdraw(): // recorded with the failed attempt
		a.fail(err)
	case s.repeat || s.lookUp != nil:
		a.fail(err)
	default:
		a.unknown(err)
	}
	return err
}
