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

// ResolveStep settles the current step of a phased operation that is unknown, or has lost its owner: the operation goes
// on behind the step, or at it, and its remaining steps are done. [History].Progress shows which step that is. An
// outcome about another step is refused.
func (op *Operator) ResolveStep(ctx context.Context, by By, c store.Claim, o phase.StepOutcome) error {
	return op.act(ctx, by, c, stepAction(o), func() error { return op.resolveStep(ctx, by, c, o) })
}

// resolveStep settles the step as the record stands at the attempt. What is in progress is stopped first: an owner that
// was only paused could go on between the look at the record and the write, which would take back what it did
// meanwhile.
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

// afterStop adds to a failure that the operation was stopped: that much was done.
func afterStop(c store.Claim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("reconcile: the operation was stopped, and is unknown at attempt %d: %w", c.Attempt, err)
}

// checkpoint is where the operation goes on after the outcome, if it is still at the attempt.
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
	if err != nil { // nothing was done, and the audit says so
		err = fmt.Errorf("%w: %w", store.ErrInvalidEvent, err)
	}
	return rec.State, p, err
}

// refusal says that an act came too late.
func refusal(op string, c store.Claim, rec *store.Record) error {
	return &store.FencedError{Op: op, Attempt: c.Attempt, Current: rec.Attempt, State: rec.State}
}

// RetryNow has an unknown attempt, a dead letter or not, looked into again at once, with all attempts before it: a
// phased operation by its own steps, which know how to find out what they can, and every other by its resolver. A
// phased operation whose step cannot find out becomes unknown again, and its resolver is asked then.
func (op *Operator) RetryNow(ctx context.Context, by By, c store.Claim) error {
	const action = "retry now"
	rec, err := op.store.Get(ctx, c.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	progress, err := phase.Inspect(&rec)
	if err != nil {
		return op.act(ctx, by, c, action, func() error {
			return op.settler.Requeue(ctx, c, "to be asked again: "+by.Why)
		})
	}
	again := phase.StepOutcome{Step: progress.Step, Result: phase.ResultRetry}
	return op.act(ctx, by, c, stepAction(again), func() error { return op.resolveStep(ctx, by, c, again) })
}

// stopLease is how long the operator may need to make a lost operation unknown. Should it die, the operation is lost as
// before.
const stopLease = 30 * time.Second

// Stop takes a phased operation, which has lost its owner, away from that owner and from all who could resume it: from
// then on it is unknown, at the attempt that is returned. An owner that was only paused may have gone on since an
// operator has looked; after Stop its writes are refused, so that what [Operator.History] shows stays true until the
// operation is resolved.
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
	_, _ = rand.Read(nonce[:]) // it never fails
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
	case v.Origin != store.OriginResumed: // it was released meanwhile: nothing was done, and nothing is
		return c, errors.Join(refused, op.store.Release(ctx, stopped, reason))
	}
	return stopped, op.store.Abandon(ctx, stopped, "stopped by an operator: "+reason)
}
