package reconcile

import (
	"context"
	"log/slog"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// ReconciledEvent reports a query about an unknown record, or its settlement from outside, to the [onceward.Observer].
type ReconciledEvent struct {
	store.ID
	Operation string
	Attempt   int64
	// Outcome is "completed", "not executed", "step done", "step not executed", "step to be tried again", "postponed" or
	// "dead letter"; or, for a query about the record, "hanging" if it has not returned in time, and "returned" if it has
	// since. For these two Attempt is not known.
	Outcome string
	// TraceID is the trace of the first execution, if it is known.
	TraceID string
	// Err is why the outcome was not found.
	Err error
}

// guardedObserver passes events to another observer. It recovers and logs panics of that observer, which could
// otherwise end the process from a goroutine of the poller.
type guardedObserver struct {
	onceward.Observer
	logger *slog.Logger
}

func (g guardedObserver) Observe(ctx context.Context, e onceward.ObserverEvent) {
	defer func() {
		if v := recover(); v != nil {
			g.logger.ErrorContext(ctx, "reconcile: the observer panicked", "panic", v)
		}
	}()
	g.Observer.Observe(ctx, e)
}
