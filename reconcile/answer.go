package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// Answer is what was found out about an operation. Make it with [Completed], [NotExecuted], [NotFound] or
// [StillUnknown], and for a phased operation with [Step], [NotExecuted], [NotFound], [StillUnknown] or [Finish], which
// concern its current step.
type Answer struct {
	kind       answerKind
	completion store.Completion
	step       phase.StepOutcome
	reason     string
	by         string // its origin, for the log
}

type answerKind uint8

const (
	stillUnknown answerKind = iota
	completed
	finished
	stepSettled
	notExecuted
	notFound
)

// Completed means that the operation was done, with its answer: every retry gets it. A payment that was declined is
// completed too, with its failure as the answer. The provider's id may be empty.
//
// It is refused for a phased operation that has a recovery point, because steps would be left out: see [Step] and
// [Finish]. A rule that answers so is wrong: the poller logs each such answer as an error, and returns
// [onceward.ErrMisconfigured] with its report.
func Completed(response store.Response, providerID string) Answer {
	return Answer{kind: completed, completion: store.Completion{Response: response, ProviderID: providerID}}
}

// Step settles the current step of a phased operation, which then continues after it or at it: its remaining steps run,
// and make its answer. With the definition, [phase.Operation.InDoubt] makes the outcome:
//
//	doubt, err := book.InDoubt(guard, rec)
//	…
//	doubt.Data.Charge = charge.ID
//	return reconcile.Step(doubt.Done(charge.ID)), nil
func Step(o phase.StepOutcome) Answer { return Answer{kind: stepSettled, step: o} }

// Finish ends a phased operation with an answer, as [phase.Finish] does: for a card that was declined. The remaining
// steps do not run, and the resolver must undo the effects of earlier steps before. The provider's id may be empty.
func Finish(response store.Response, providerID string) Answer {
	a := Completed(response, providerID)
	a.kind = finished
	return a
}

// NotExecuted means that the operation was not done and will not be: the other system has refused or cancelled it. A
// retry executes. For a phased operation it concerns the current step, which then runs when the operation continues.
func NotExecuted(reason string) Answer { return Answer{kind: notExecuted, reason: reason} }

// NotFound means that the other system does not know the operation now. The [Rule] decides whether this means that it
// was not executed.
func NotFound() Answer { return Answer{kind: notFound, reason: "the other system does not know it"} }

// StillUnknown means that the outcome was not found, such as for a payment that is still being processed.
func StillUnknown(reason string) Answer { return Answer{kind: stillUnknown, reason: reason} }

// Response makes a stored answer of a status, header fields and a body, as a handler would have written it.
func Response(status int, header http.Header, body []byte) store.Response {
	response := store.Response{Status: status, Body: body}
	for name, values := range header {
		for _, value := range values {
			response.Header = append(response.Header, store.HeaderField{Name: http.CanonicalHeaderKey(name), Value: value})
		}
	}
	slices.SortStableFunc(response.Header, func(a, b store.HeaderField) int { return cmp.Compare(a.Name, b.Name) })
	return response
}

// resolution is the effect of an answer on a record.
type resolution struct {
	report  Report
	outcome string // for the observer
	action  string // for the audit, with the reason
	reason  string
	write   func(ctx context.Context, s store.Reconciler, c store.Claim) error
}

// resolve applies an answer to a record. For a phased operation it settles only the current step, so that the remaining
// steps run (invariant I15). An answer that would skip them is an error.
func (a *Answer) resolve(rec *store.Record) (*resolution, error) {
	progress, err := phase.Inspect(rec)
	phased := !errors.Is(err, phase.ErrNotPhased)
	switch {
	case phased && err != nil:
		return nil, err
	case a.kind == stepSettled && !phased:
		return nil, fmt.Errorf("%w: reconcile: the rule for %q answers Step, for an operation that has no current step: %w",
			onceward.ErrMisconfigured, rec.Operation, err)
	case a.kind == completed && phased:
		return nil, fmt.Errorf("%w: reconcile: the rule for %q answers Completed for a phased operation, whose other steps "+
			"would be skipped: use Step for the result of the current step, or Finish to end the operation there",
			onceward.ErrMisconfigured, rec.Operation)
	case a.kind == notExecuted && phased && !progress.InDoubt:
		return nil, fmt.Errorf("reconcile: no call is in doubt: step %q was given up, and is for a person to retry",
			progress.Step)
	case a.kind == notExecuted && phased:
		return settleStep(progress, phase.StepOutcome{Step: progress.Step, Result: phase.ResultNotExecuted}, a.reason)
	case a.kind == stepSettled:
		return settleStep(progress, a.step, "the other system's answer")
	case a.kind == notExecuted:
		return a.notExecuted(), nil
	default:
		return a.complete(), nil
	}
}

// complete returns a resolution that ends the operation with an answer.
func (a *Answer) complete() *resolution {
	return &resolution{
		report: Report{Completed: 1}, outcome: "completed", action: "resolve completed", reason: "the other system's answer",
		write: func(ctx context.Context, s store.Reconciler, c store.Claim) error {
			return s.ResolveCompleted(ctx, c, &a.completion)
		},
	}
}

// notExecuted returns a resolution for an operation that did nothing.
func (a *Answer) notExecuted() *resolution {
	reason := short(a.reason)
	return &resolution{
		report: Report{NotExecuted: 1}, outcome: "not executed", action: "resolve not executed", reason: reason,
		write: func(ctx context.Context, s store.Reconciler, c store.Claim) error {
			return s.ResolveNotExecuted(ctx, c, reason)
		},
	}
}

// settleStep returns a resolution that lets a phased operation continue.
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

// stepAction returns the name of an act on a step in the audit.
func stepAction(o phase.StepOutcome) string {
	return fmt.Sprintf("resolve step %q as %s", o.Step, o.Result)
}
