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
	// recorded means that a recovery point is stored: without a recovery point, nothing was ever done.
	recorded bool
	// intends means that this attempt recorded the intent: no earlier attempt can have made the call.
	intends bool
	givenUp error // why the outcome is unknown, if it is
}

// run runs an operation from its last recovery point to its answer. If it cannot finish, it has set the attempt's
// outcome on the operation, and returns the reason.
func (o *Operation[T]) run(
	ctx context.Context, op *onceward.Operation, via string, start func() (*T, error),
) (*Answer, error) {
	a := &attempt[T]{Operation: o, op: op}
	if err := op.KeepData(); err != nil { // an earlier version of the handler, without steps, may have made its call
		a.unknown(err)
		return nil, err
	}
	returned := false
	defer func() {
		if !returned { // a step, the start or the answer panicked, and the panic continues
			a.fail(errors.New("a step panicked"))
			a.logEnd(ctx, errors.New("a step panicked"))
		}
	}()
	answer, err := a.advance(ctx, via, start)
	returned = true
	return answer, err
}

// advance runs the remaining steps.
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
		a.logEnd(ctx, err)
		return nil, err
	}
	return a.end(end, err)
}

// end ends an operation with an answer, or without a record if it was rejected and nothing is recorded.
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
		return nil, errors.New(end.Error()) // no longer a rejection: the guard stores it as a failure
	default:
		return a.deliver(&end.answer), nil
	}
}

// load reads the state of an earlier attempt, or starts.
func (a *attempt[T]) load(via string, start func() (*T, error)) error {
	point, stored := a.op.Point()
	if point == "" {
		return a.begin(via, start)
	}
	a.recorded = true
	state, err := a.read(stored)
	switch {
	case err != nil:
		// A node with another version of the program can continue, and may do so immediately: this was neither a failed
		// attempt nor a lost one.
		a.op.Suspend(0)
	case state.Via != via:
		// A resumer read the record before the first recovery point was stored, and could not know how the operation was
		// started.
		err = errors.New("phase: the operation was started in another way; it is resumed again")
		a.op.Suspend(0)
	default:
		a.state = state
		err = a.takeOver()
	}
	return err
}

// takeOver records, before anything is done, that this attempt continues for a lost one. If the step ends its process
// each time, the operation is given up after Definition.MaxAttempts.
func (a *attempt[T]) takeOver() error {
	if !a.op.Resumed() {
		return nil
	}
	next := a.state
	next.Lost++
	if next.Lost > a.MaxAttempts {
		err := fmt.Errorf("phase: given up after %d attempts that were lost after %q", a.state.Lost, a.state.point())
		a.unknown(err)
		return err
	}
	if err := a.record(next); err != nil {
		return a.localFailed(err)
	}
	return nil
}

// begin starts an operation without a stored state: whatever fails here, nothing was done.
func (a *attempt[T]) begin(via string, start func() (*T, error)) error {
	a.state = envelope{Version: envelopeVersion, Via: via, Defined: a.Version, Steps: a.names}
	data, err := start()
	switch {
	case errors.Is(err, errLostBeforeStart):
		a.never(err)
		return err
	case err != nil && asFinished(err) == nil:
		return rejection(onceward.Rejected(err)) // the caller's data is not valid for the operation
	case err != nil:
		return err
	}
	if a.state.Data, err = json.Marshal(data); err == nil {
		_, err = decode[T](a.state.Data, !a.LenientData) // or no later attempt could continue
	}
	if err != nil {
		err = fmt.Errorf("phase: the data cannot be stored: %w", err)
		a.never(err)
	}
	return err
}

// step runs one step, if the attempt still holds the right to execute.
func (a *attempt[T]) step(ctx context.Context, s *Step[T]) error {
	if err := a.mayContinue(ctx); err != nil {
		a.op.Suspend(a.MinBackoff)
		return err
	}
	if s.external() {
		return a.external(ctx, s)
	}
	return a.local(ctx, s)
}

// mayContinue returns an error if the lease is lost or the context has ended. A call begun after its context has ended
// would be in doubt without need.
func (a *attempt[T]) mayContinue(ctx context.Context) error {
	if err := a.op.CheckLease(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// data returns a new copy of the carried data: a step's changes to it count only if the step succeeds.
func (a *attempt[T]) data() (*T, error) {
	return decode[T](a.state.Data, false) // data stored by others was decoded strictly when it was read
}

// after returns the state after a step that left this data.
func (a *attempt[T]) after(s *Step[T], data *T) (envelope, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return envelope{}, fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	return a.state.finished(s.name, raw).naming(s.name, a.op.ProviderID()), nil
}

// checkpoint returns the stored form of a state.
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

// finish makes the answer from the data of the steps.
func (a *attempt[T]) finish() (*Answer, error) {
	data, err := a.data()
	if err != nil {
		a.unknown(err)
		return nil, err
	}
	answer := a.Answer(data)
	return a.deliver(&answer), nil
}

// deliver ends the operation with an answer. An answer that the guard does not store would release the operation, or
// leave it in doubt: it is only right before the first recovery point.
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

// fail ends an attempt whose step did not succeed and may be retried. Without a recovery point nothing was done, and
// the caller's retry starts from the beginning.
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
	// If this fails, the attempt is not counted; the operation continues anyway.
	_ = a.record(next)
	a.op.Suspend(backoff.Exponential(a.MinBackoff, maxBackoff, next.Attempts))
}

// never ends an attempt at an operation of which nothing was ever done.
func (a *attempt[T]) never(cause error) {
	a.op.SetReason(cause.Error())
	a.op.NeverExecuted()
}

// unknown ends an attempt after which no attempt may continue automatically.
func (a *attempt[T]) unknown(cause error) {
	a.givenUp = cause
	a.op.SetReason(cause.Error())
	a.op.Unknown()
}
