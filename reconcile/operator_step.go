package reconcile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// ResolveStep settles the current step of a phased operation that is unknown, or has lost its owner: the operation
// continues after the step, or at it, and its remaining steps run. [History].Progress shows the current step. An
// outcome of another step is refused.
func (op *Operator) ResolveStep(ctx context.Context, by By, c store.Claim, o phase.StepOutcome) error {
	return op.act(ctx, by, c, stepAction(o), func() error { return op.resolveStep(ctx, by, c, o) })
}

// resolveStep settles the step of the record at the attempt. An operation in progress is stopped first: an owner that
// was only paused could continue between the read of the record and the write, which would overwrite its progress.
func (op *Operator) resolveStep(ctx context.Context, by By, c store.Claim, o phase.StepOutcome) error {
	state, checkpoint, err := op.checkpoint(ctx, c, o)
	if err == nil && state == store.StateInProgress {
		if c, err = op.stop(ctx, c, by.Why); err == nil {
			_, checkpoint, err = op.checkpoint(ctx, c, o)
			err = afterStop(c, err)
		}
	}
	if err != nil {
		return err
	}
	return op.settler.ResolveStep(ctx, c, checkpoint)
}

// afterStop adds to an error that the operation was stopped.
func afterStop(c store.Claim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("reconcile: the operation was stopped, and is unknown at attempt %d: %w", c.Attempt, err)
}

// checkpoint returns where the operation continues after the outcome, if it is still at the attempt.
func (op *Operator) checkpoint(
	ctx context.Context, c store.Claim, o phase.StepOutcome,
) (s store.State, p store.Checkpoint, err error) {
	rec, err := op.store.Get(ctx, c.ID)
	if err != nil {
		return s, p, err
	}
	if rec.Attempt != c.Attempt {
		return s, p, refusal(store.EventResolveStep.String(), c, &rec)
	}
	progress, err := phase.Inspect(&rec)
	if err == nil {
		p, err = progress.Checkpoint(o)
	}
	if err != nil { // nothing was done, and the audit records it
		err = fmt.Errorf("%w: %w", store.ErrInvalidEvent, err)
	}
	return rec.State, p, err
}

// refusal returns the error of an act that came too late.
func refusal(op string, c store.Claim, rec *store.Record) error {
	return &store.FencedError{Op: op, Attempt: c.Attempt, Current: rec.Attempt, State: rec.State}
}

// RetryNow retries an unknown attempt immediately, dead letter or not, with the count of attempts reset: a phased
// operation by its own steps, which find out what they can, and any other operation by its resolver. A phased operation
// whose step cannot find out becomes unknown again, and its resolver is then queried.
func (op *Operator) RetryNow(ctx context.Context, by By, c store.Claim) error {
	const action = "retry now"
	rec, err := op.store.Get(ctx, c.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	progress, err := phase.Inspect(&rec)
	if err != nil {
		return op.act(ctx, by, c, action, func() error {
			return op.settler.Requeue(ctx, c, "to be queried again: "+by.Why)
		})
	}
	retry := phase.StepOutcome{Step: progress.Step, Result: phase.ResultRetry}
	return op.act(ctx, by, c, stepAction(retry), func() error { return op.resolveStep(ctx, by, c, retry) })
}

// stopLease is how long the operator may need to make a lost operation unknown. If its process dies, the operation is
// lost as before.
const stopLease = 30 * time.Second

// Stop takes a phased operation, which has lost its owner, away from that owner and from all resumers: from then on it
// is unknown, at the attempt that is returned. An owner that was only paused may have continued since the operator
// looked; after Stop its writes are refused, so that what [Operator.History] shows stays true until the operation is
// resolved.
func (op *Operator) Stop(ctx context.Context, by By, c store.Claim) (stopped store.Claim, err error) {
	err = op.act(ctx, by, c, "stop", func() (err error) {
		stopped, err = op.stop(ctx, c, by.Why)
		return err
	})
	return stopped, err
}

func (op *Operator) stop(ctx context.Context, c store.Claim, reason string) (store.Claim, error) {
	rec, err := op.store.Get(ctx, c.ID)
	if err != nil {
		return c, err
	}
	refused := refusal("stop", c, &rec)
	if rec.Attempt != c.Attempt || rec.State != store.StateInProgress || rec.OnLost != store.LostResume {
		return c, refused
	}
	var nonce store.Nonce
	_, _ = rand.Read(nonce[:]) // never fails
	v, err := op.store.Reserve(ctx, &store.Reservation{
		ID: c.ID, Operation: rec.Operation, Fingerprints: []store.Fingerprint{rec.Fingerprint}, OnLost: store.LostResume,
		Nonce: nonce, Lease: stopLease, Retention: rec.Retention, NoCreate: true,
	})
	if err != nil {
		return c, err
	}
	stopped := store.Claim{ID: c.ID, Attempt: v.Record.Attempt}
	switch {
	case v.Decision != store.DecisionExecute: // its owner holds its lease, or another attempt was faster
		return c, refused
	case v.Origin != store.OriginResumed: // it was released in the meantime: nothing was done
		return c, errors.Join(refused, op.store.Release(ctx, stopped, reason))
	}
	return stopped, op.store.Abandon(ctx, stopped, "stopped by an operator: "+reason)
}
