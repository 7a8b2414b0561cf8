package reconcile

import (
	"context"
	"log/slog"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// ReconciledEvent is an unknown record that was asked after or settled from outside: it goes to the
// [onceward.Observer].
type ReconciledEvent struct {
	store.ID
	Operation string
	Attempt   int64
	// Outcome is "completed", "not executed", "step done", "step not executed", "step to be tried again", "postponed"
	// or "dead letter"; or, of a question about the record, "hanging" if it has not returned though its time is over,
	// and "returned" if it has since. Of those two Attempt is not known.
	Outcome string
	// TraceID is that of the first execution, if it is known.
	TraceID string
	// Err is why nothing was learned.
	Err error
}

// guardedObserver tells another. A panic of that is logged: it may come in a goroutine of the poller's, where it would
// end the process.
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
