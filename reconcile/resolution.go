package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// resolution is what an answer does to a record.
type resolution struct {
	report  Report
	outcome string // for the observer
	action  string // for the audit, with the reason
	reason  string
	write   func(ctx context.Context, s store.Reconciler, c store.Claim) error
}

// resolve applies an answer to a record. For a phased operation it settles the step at hand and nothing else, so that
// the steps behind it are done (I15). An answer that would skip them is an error.
func (a *Answer) resolve(rec *store.Record) (*resolution, error) {
	progress, err := phase.Inspect(rec)
	phased := !errors.Is(err, phase.ErrNotPhased)
	switch {
	case phased && err != nil:
		return nil, err
	case a.kind == stepSettled && !phased:
		return nil, fmt.Errorf("reconcile: an answer about a step, for an operation that has none at hand: %w", err)
	case a.kind == completed && phased:
		return nil, errors.New("reconcile: Completed would skip the steps that are left of a phased operation: " +
			"use Step for what was learned of the step at hand, or Finish to end the operation there")
	case a.kind == notExecuted && phased && !progress.InDoubt:
		return nil, fmt.Errorf("reconcile: no call is in doubt: step %q was given up, and is for a person to retry", progress.Step)
	case a.kind == notExecuted && phased:
		return settleStep(progress, phase.StepOutcome{Step: progress.Step, Result: phase.StepNotExecuted}, a.reason)
	case a.kind == stepSettled:
		return settleStep(progress, a.step, "the other system's answer")
	case a.kind == notExecuted:
		return a.release(), nil
	default:
		return a.complete(), nil
	}
}

// complete ends the operation with an answer.
func (a *Answer) complete() *resolution {
	return &resolution{
		report: Report{Completed: 1}, outcome: "completed", action: "resolve completed", reason: "the other system's answer",
		write: func(ctx context.Context, s store.Reconciler, c store.Claim) error {
			return s.ResolveCompleted(ctx, c, &a.completion)
		},
	}
}

// release says that nothing was done.
func (a *Answer) release() *resolution {
	reason := short(a.reason)
	return &resolution{
		report: Report{NotExecuted: 1}, outcome: "not executed", action: "resolve not executed", reason: reason,
		write: func(ctx context.Context, s store.Reconciler, c store.Claim) error {
			return s.ResolveNotExecuted(ctx, c, reason)
		},
	}
}

// settleStep lets a phased operation go on.
func settleStep(progress *phase.Progress, o phase.StepOutcome, reason string) (*resolution, error) {
	checkpoint, err := progress.Checkpoint(o)
	if err != nil {
		return nil, err
	}
	return &resolution{
		report: Report{Steps: 1}, outcome: "step " + o.Result.String(), action: stepAction(o), reason: short(reason),
		write: func(ctx context.Context, s store.Reconciler, c store.Claim) error {
			return s.ResolveStep(ctx, c, checkpoint)
		},
	}, nil
}

// stepAction names an act on a step in the audit.
func stepAction(o phase.StepOutcome) string {
	return fmt.Sprintf("resolve step %q as %s", o.Step, o.Result)
}
