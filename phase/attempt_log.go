package phase

import (
	"context"
	"errors"
	"log/slog"
)

// logEnd logs why an attempt ended without an answer: the caller only gets the answer that the operation is in
// progress, or that nothing was done. An attempt that was given up as unknown is logged as an error, and an attempt
// that will be retried as a warning.
func (a *attempt[T]) logEnd(ctx context.Context, err error) {
	log, step := a.op.Logger(), a.currentStep()
	if question := (*lookUpError)(nil); errors.As(err, &question) {
		log = log.With(slog.String("failure", question.failure), slog.Any("look_up_failure", question.cause))
	}
	switch {
	case errors.Is(err, errLostBeforeStart): // nothing was done, and nothing will be
	case a.givenUp != nil:
		log.ErrorContext(ctx, "phase: a step was given up, and the outcome is unknown", step, slog.Any("error", a.givenUp))
	case a.state.Version == 0:
		log.WarnContext(ctx, "phase: what is stored of an operation is not for this node", slog.Any("error", err))
	default:
		log.WarnContext(ctx, "phase: a step failed", step,
			slog.Int("failed_attempts", a.state.Attempts), slog.Any("error", err))
	}
}

// currentStep returns the name of the next step, if there is one.
func (a *attempt[T]) currentStep() slog.Attr {
	if next := len(a.state.Done); next < len(a.Steps) {
		return slog.String("step", a.Steps[next].name)
	}
	return slog.Attr{}
}
