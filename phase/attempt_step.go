package phase

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/store"
)

// local runs a local step.
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

// localApart runs a local step on a store that shares no transactions. Before the first step it records that the
// operation may have begun.
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
		a.unknown(err) // the step itself committed something, and would repeat it
		return err
	}
	// The step may have been committed, or another attempt may have continued: this attempt must not decide.
	inDoubt := errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrOutcomeUnknown)
	if inDoubt || a.recorded && errors.Is(err, store.ErrUnavailable) {
		a.suspend(inDoubt) // not the step's fault: it does not count as an attempt
		return err
	}
	if onceward.IsRejected(err) {
		return rejection(err)
	}
	a.fail(err)
	return err
}

// suspend leaves the operation to a later attempt, and records that this one was not lost. In doubt it does not write
// to the store, whose state this attempt must not change.
func (a *attempt[T]) suspend(inDoubt bool) {
	if a.state.Lost > 0 && !inDoubt {
		found := a.state
		found.Lost = 0
		_ = a.record(found) // if this fails, the attempt counts as lost
	}
	a.op.Suspend(a.MinBackoff)
}

// external runs an external step: it records the intent, makes the call, and records the result.
func (a *attempt[T]) external(ctx context.Context, s *Step[T]) error {
	if a.state.Intent == s.name {
		return a.resumeCall(ctx, s) // an earlier attempt may have made the call
	}
	intended := a.state
	intended.Intent, intended.By = s.name, a.op.Attempt()
	if err := a.record(intended); err != nil {
		return a.localFailed(err)
	}
	a.intends = true
	return a.makeCall(ctx, s)
}

// resumeCall handles a call that an earlier attempt may have made.
func (a *attempt[T]) resumeCall(ctx context.Context, s *Step[T]) error {
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

// lookUpError is a look-up that failed. It proves nothing about the call: a refusal to answer is not a refusal of the
// call. So the cause is readable, but not unwrapped.
type lookUpError struct {
	step    string
	failure string // the failure of the step itself, if it is known
	cause   error
}

// Error describes the failure of the step, and separately the failure of the look-up.
func (e *lookUpError) Error() string {
	failure := e.failure
	if failure == "" {
		failure = "an earlier attempt was lost in it"
	}
	return fmt.Sprintf("phase: step %s is in doubt (%s), and the question about its call failed: %v",
		e.step, failure, e.cause)
}

// makeCall makes the call, if the attempt still holds the right to execute.
func (a *attempt[T]) makeCall(ctx context.Context, s *Step[T]) error {
	data, err := a.data()
	if err != nil {
		a.withdraw()
		return a.localFailed(err)
	}
	if err := a.mayContinue(ctx); err != nil {
		if a.withdraw() {
			_ = a.record(a.state) // if this fails, the next attempt is in doubt, which is safe
		}
		a.op.Suspend(a.MinBackoff)
		return err
	}
	if err := s.call(ctx, a.op.DownstreamKey(s.name), data); err != nil {
		return a.callFailed(s, err)
	}
	return a.succeeded(s, data)
}

// withdraw removes an intent that led to no call. It only removes the attempt's own intent: the call of an earlier
// attempt may have been made, and its intent stays.
func (a *attempt[T]) withdraw() bool {
	if !a.intends {
		return false
	}
	a.state, a.intends = a.state.withdrawn(), false
	return true
}

// succeeded records the result of a call. If this fails, the intent stays, and the next attempt handles it.
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
		_ = a.record(a.state) // if this fails and the answer is not stored, the next attempt is in doubt, which is safe
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
