package phase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onceward/onceward"
)

// attempt is one attempt at an operation.
type attempt[T any] struct {
	*Operation[T]
	op    *onceward.Operation
	state envelope
	// recorded says that a recovery point is stored: without one, nothing was ever done.
	recorded bool
}

// run takes an operation from its last recovery point to its answer. Where it cannot, it has told the guard how the attempt
// ends, and returns why.
func (o *Operation[T]) run(ctx context.Context, op *onceward.Operation, via string, start func() (*T, error)) (answer *Answer, err error) {
	a := &attempt[T]{Operation: o, op: op}
	if err := a.load(via, start); err != nil {
		return a.notStarted(err)
	}
	returned := false
	defer func() {
		if !returned { // a step panicked, and the panic goes on
			a.fail(errors.New("a step panicked"))
		}
	}()
	for i := len(a.state.Done); i < len(o.Steps) && err == nil; i++ {
		err = a.step(ctx, &o.Steps[i])
	}
	returned = true
	if final, ok := asFinished(err); ok {
		return final, nil
	}
	if err != nil {
		return nil, err
	}
	return a.finish()
}

// load takes up what an earlier attempt left behind, or starts.
func (a *attempt[T]) load(via string, start func() (*T, error)) error {
	point, stored := a.op.Point()
	if point != "" {
		a.recorded = true
		var err error
		if a.state, err = parseEnvelope(stored); err != nil {
			return err
		}
		return a.state.fits(a.Name, a.names)
	}
	data, err := start()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(data)
	a.state = envelope{Version: envelopeVersion, Via: via, Data: raw}
	return err
}

// notStarted ends an attempt that could not take up its work.
func (a *attempt[T]) notStarted(err error) (*Answer, error) {
	if final, ok := asFinished(err); ok {
		return final, nil
	}
	switch {
	case a.recorded:
		a.unknown(err)
	case errors.Is(err, errLostBeforeStart):
		a.op.NeverExecuted()
	default:
		// The caller's data is not what the operation needs: it is told so, and so is every retry.
		return &Answer{Status: http.StatusBadRequest, Body: []byte(err.Error() + "\n")}, nil
	}
	return nil, err
}

// step does one step, if the attempt still holds its right to.
func (a *attempt[T]) step(ctx context.Context, s *Step[T]) error {
	if err := a.op.Alive(); err != nil {
		a.op.Suspend(a.Pause)
		return err
	}
	if s.external() {
		return a.external(ctx, s)
	}
	return a.local(ctx, s)
}

// data is a fresh copy of the carried data: what a step changes in it counts only if the step succeeds.
func (a *attempt[T]) data() (*T, error) {
	data := new(T)
	if err := json.Unmarshal(a.state.Data, data); err != nil {
		return nil, fmt.Errorf("phase: the carried data does not fit its type: %w", err)
	}
	return data, nil
}

// after is the state behind a step that left the data so.
func (a *attempt[T]) after(s *Step[T], data *T) (envelope, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return envelope{}, fmt.Errorf("phase: the data cannot be stored: %w", err)
	}
	next := a.state
	next.Done = append(append([]string(nil), a.state.Done...), s.name)
	next.Intent, next.Tries, next.Data = "", 0, raw
	return next, nil
}

// checkpoint is what the store keeps of a state.
func (a *attempt[T]) checkpoint(e envelope) (onceward.Checkpoint, error) {
	b, err := e.encode(a.MaxData)
	return onceward.Checkpoint{Point: e.point(), Data: b}, err
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
	return &answer, nil
}

// fail ends an attempt whose step did not succeed and may be tried again. What was never recorded was never done: the
// caller's retry starts afresh.
func (a *attempt[T]) fail(cause error) {
	if !a.recorded {
		a.op.Because(cause.Error())
		a.op.NeverExecuted()
		return
	}
	next := a.state
	next.Tries++
	if next.Tries >= a.Tries {
		a.unknown(fmt.Errorf("given up after %d tries: %w", next.Tries, cause))
		return
	}
	// Should this fail, the try is not counted; the operation goes on all the same.
	_ = a.record(next)
	a.op.Suspend(a.pauseAfter(next.Tries))
}

// unknown ends an attempt that nobody can go on with.
func (a *attempt[T]) unknown(cause error) {
	a.op.Because(cause.Error())
	a.op.Unknown()
}

// pauseAfter doubles with each try.
func (a *attempt[T]) pauseAfter(tries int) time.Duration {
	pause := a.Pause
	for range tries - 1 {
		pause = min(2*pause, longestPause)
	}
	return min(pause, longestPause)
}
