package phase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// attempt is one attempt at an operation.
type attempt[T any] struct {
	*Operation[T]
	op    *onceward.Operation
	state envelope
	// recorded says that a recovery point is stored: without one, nothing was ever done.
	recorded bool
	// intends says that the intent is this attempt's own: no earlier one can have made the call.
	intends bool
	givenUp error // why the outcome is unknown, if it is
}

// run takes an operation from its last recovery point to its answer. Where it cannot, it has told the guard how the
// attempt ends, and returns why.
func (o *Operation[T]) run(
	ctx context.Context, op *onceward.Operation, via string, start func() (*T, error),
) (*Answer, error) {
	a := &attempt[T]{Operation: o, op: op}
	if err := op.KeepData(); err != nil { // a handler that was no phased one may have made its call
		a.unknown(err)
		return nil, err
	}
	returned := false
	defer func() {
		if !returned { // a step panicked, or the start, or the answer, and the panic goes on
			a.fail(errors.New("a step panicked"))
			a.tell(ctx, errors.New("a step panicked"))
		}
	}()
	answer, err := a.advance(ctx, via, start)
	returned = true
	return answer, err
}

// advance does the steps that are left.
func (a *attempt[T]) advance(ctx context.Context, via string, start func() (*T, error)) (*Answer, error) {
	err := a.load(via, start)
	for i := len(a.state.Done); i < len(a.Steps) && err == nil; i++ {
		err = a.step(ctx, &a.Steps[i])
	}
	if err == nil {
		return a.finish()
	}
	end := asFinished(err)
	if end == nil {
		a.tell(ctx, err)
		return nil, err
	}
	return a.end(end, err)
}

// end ends an operation with an answer, or so that nothing is kept if that is asked for and nothing is recorded.
func (a *attempt[T]) end(end *finished, err error) (*Answer, error) {
	inDoubt := errors.Is(err, store.ErrOutcomeUnknown) || errors.Is(err, store.ErrFenced)
	reject := onceward.IsRejected(err) && !a.recorded && !inDoubt
	if reject {
		a.never(err)
		a.op.Reject()
	}
	switch {
	case reject && a.state.Via == viaDo:
		return nil, err
	case reject:
		return &end.answer, nil
	case end.rejected != nil && a.state.Via == viaDo:
		return nil, errors.New(end.Error()) // it says no more that nothing is kept: the guard stores it as a failure
	default:
		return a.deliver(&end.answer), nil
	}
}

// load reads what an earlier attempt left behind, or starts.
func (a *attempt[T]) load(via string, start func() (*T, error)) error {
	point, stored := a.op.Point()
	if point == "" {
		return a.begin(via, start)
	}
	a.recorded = true
	state, err := a.read(stored)
	switch {
	case err != nil:
		// Another version of the program knows how to go on, and may do so at once: this was neither a failed attempt
		// nor a lost one.
		a.op.Suspend(0)
	case state.Via != via:
		// A resumer looked before the first recovery point was stored, and could not know how the operation came.
		err = errors.New("phase: the operation came another way; it is resumed again")
		a.op.Suspend(0)
	default:
		a.state = state
		err = a.takeOver()
	}
	return err
}

// takeOver notes, before anything is done, that this attempt goes on for one that was lost. Should the step be what
// kills its process each time, that ends after as many as Definition.MaxAttempts.
func (a *attempt[T]) takeOver() error {
	if !a.op.Resumed() {
		return nil
	}
	next := a.state
	next.Lost++
	if next.Lost > a.MaxAttempts {
		err := fmt.Errorf("phase: given up after %d attempts that were lost behind %q", a.state.Lost, a.state.point())
		a.unknown(err)
		return err
	}
	if err := a.record(next); err != nil {
		return a.localFailed(err)
	}
	return nil
}

// begin starts an operation of which nothing is stored: whatever fails here, nothing was done.
func (a *attempt[T]) begin(via string, start func() (*T, error)) error {
	a.state = envelope{Version: envelopeVersion, Via: via, Defined: a.Version, Steps: a.names}
	data, err := start()
	switch {
	case errors.Is(err, errLostBeforeStart):
		a.never(err)
		return err
	case err != nil && asFinished(err) == nil:
		return rejection(onceward.Rejected(err)) // the caller's data is not what the operation needs
	case err != nil:
		return err
	}
	if a.state.Data, err = json.Marshal(data); err == nil {
		_, err = decode[T](a.state.Data, !a.LenientData) // or no later attempt could go on with it
	}
	if err != nil {
		err = fmt.Errorf("phase: the data cannot be stored: %w", err)
		a.never(err)
	}
	return err
}

// step does one step, if the attempt still holds its right to.
func (a *attempt[T]) step(ctx context.Context, s *Step[T]) error {
	if err := a.mayGoOn(ctx); err != nil {
		a.op.Suspend(a.MinBackoff)
		return err
	}
	if s.external() {
		return a.external(ctx, s)
	}
	return a.local(ctx, s)
}

// mayGoOn reports whether there is a right to go on, and time. A call that is begun when its context has ended would be
// in doubt for nothing.
func (a *attempt[T]) mayGoOn(ctx context.Context) error {
	if err := a.op.CheckLease(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// data is a fresh copy of the carried data: what a step changes in it counts only if the step succeeds.
func (a *attempt[T]) data() (*T, error) {
	return decode[T](a.state.Data, false) // what was stored by others was decoded strictly when it was read
}

// after is the state behind a step that left the data so.
func (a *attempt[T]) after(s *Step[T], data *T) (envelope, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return envelope{}, fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return a.state.finished(s.name, raw), nil
}

// checkpoint is what the store keeps of a state.
func (a *attempt[T]) checkpoint(e envelope) (store.Checkpoint, error) {
	b, err := e.encode(a.MaxData)
	return store.Checkpoint{Point: e.point(), Data: b}, err
}

// record stores a state.
func (a *attempt[T]) record(e envelope) error {
	p, err := a.checkpoint(e)
	if err != nil {
		return err
	}
	if err := a.op.Checkpoint(p); err != nil {
		return err
	}
	a.state, a.recorded = e, true
	return nil
}

// finish makes the answer from what the steps left behind.
func (a *attempt[T]) finish() (*Answer, error) {
	data, err := a.data()
	if err != nil {
		a.unknown(err)
		return nil, err
	}
	answer := a.Answer(data)
	return a.deliver(&answer), nil
}

// deliver ends the operation with an answer. One that the guard does not store would let go of what was done, or leave
// it in doubt: only before the first recovery point does it mean what it says.
func (a *attempt[T]) deliver(answer *Answer) *Answer {
	switch {
	case a.state.Via == viaDo || answer.isStored():
	case !a.recorded:
		a.op.NeverExecuted()
	default:
		a.unknown(fmt.Errorf("phase: the operation ended with status %d, which is not stored", answer.status()))
	}
	return answer
}

// fail ends an attempt whose step did not succeed and may be tried again. What was never recorded was never done: the
// caller's retry starts afresh.
func (a *attempt[T]) fail(cause error) {
	if !a.recorded {
		a.never(cause)
		return
	}
	next := a.state.failed(cause)
	if next.Attempts >= a.MaxAttempts {
		a.unknown(fmt.Errorf("given up after %d attempts: %w", next.Attempts, cause))
		return
	}
	// Should this fail, the attempt is not counted; the operation goes on all the same.
	_ = a.record(next)
	a.op.Suspend(backoff.Exponential(a.MinBackoff, maxBackoff, next.Attempts))
}

// never ends an attempt at an operation of which nothing was ever done.
func (a *attempt[T]) never(cause error) {
	a.op.SetReason(cause.Error())
	a.op.NeverExecuted()
}

// unknown ends an attempt after which no other may go on by itself.
func (a *attempt[T]) unknown(cause error) {
	a.givenUp = cause
	a.op.SetReason(cause.Error())
	a.op.Unknown()
}
