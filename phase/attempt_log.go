package phase

import (
	"context"
	"errors"
	"log/slog"
)

// tell tells an operator why an attempt ended without an answer: the caller is only told that the operation goes on, or
// that nothing was done. What is given up as unknown is an error, what is tried again a warning.
func (a *attempt[T]) tell(ctx context.Context, err error) {
	log, step := a.op.Logger(), a.currentStep()
	if question := (*lookUpError)(nil); errors.As(err, &question) {
		log = log.With(slog.String("failure", question.failure), slog.Any("look_up_failure", question.cause))
	}
	switch {
	case errors.Is(err, errLostBeforeStart): // nothing was done, and nothing is to be
	case a.givenUp != nil:
		log.ErrorContext(ctx, "phase: a step was given up, and the outcome is unknown", step, slog.Any("error", a.givenUp))
	case a.state.Version == 0:
		log.WarnContext(ctx, "phase: what is stored of an operation is not for this node", slog.Any("error", err))
	default:
		log.WarnContext(ctx, "phase: a step failed", step,
			slog.Int("failed_attempts", a.state.Attempts), slog.Any("error", err))
	}
}

// currentStep names the step that is to be done next, if there is one.
func (a *attempt[T]) currentStep() slog.Attr {
	if next := len(a.state.Done); next < len(a.Steps) {
		return slog.String("step", a.Steps[next].name)
	}
	return slog.Attr{}
}
