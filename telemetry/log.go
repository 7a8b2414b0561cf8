package telemetry

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// log writes an event to the log, without any content, and with the hash of the key instead of the key (M3).
func (t *Telemetry) log(ctx context.Context, event onceward.ObserverEvent) {
	if !t.config.Logger.Enabled(ctx, slog.LevelDebug) {
		if e, ok := event.(breakerChange); ok {
			t.logBreaker(ctx, e)
		}
		return
	}
	switch e := event.(type) {
	case onceward.DecidedEvent:
		t.logRecord(ctx, "onceward: decided", e.ID, e.Operation, e.Attempt,
			slog.String("decision", decisions[decisionIndex(&e)]), elapsed(e.Elapsed))
	case onceward.ExecutedEvent:
		t.logRecord(ctx, "onceward: executed", e.ID, e.Operation, e.Attempt,
			slog.Int("status", e.Status), slog.Bool("panicked", e.Panicked), slog.Bool("unknown", e.Unknown), elapsed(e.Elapsed))
	case onceward.SettledEvent:
		t.logRecord(ctx, "onceward: settled", e.ID, e.Operation, e.Attempt, slog.String("state", e.State.String()))
	case onceward.StoreCalledEvent:
		t.logRecord(ctx, "onceward: store called", e.ID, e.Operation, e.Attempt,
			slog.String("call", e.Call), slog.Bool("failed", e.Err != nil), elapsed(e.Elapsed))
	case reconcile.ReconciledEvent:
		t.logRecord(ctx, "onceward: reconciled", e.ID, e.Operation, e.Attempt, slog.String("outcome", e.Outcome))
	case outbox.DeliveredEvent:
		t.logRecord(ctx, "onceward: delivered", e.ID, "", 0, slog.String("topic", e.Topic),
			slog.String("message", e.Message), slog.Int("attempts", e.Attempts), slog.String("outcome", e.Outcome), elapsed(e.Elapsed))
	case inbox.HandledEvent:
		t.config.Logger.LogAttrs(ctx, slog.LevelDebug, "onceward: consumed", slog.String("consumer", e.Consumer),
			slog.String("event", e.EventID), slog.Bool("applied", e.Applied), slog.Bool("failed", e.Err != nil),
			elapsed(e.Elapsed))
	case breakerChange:
		t.logBreaker(ctx, e)
	}
}

func elapsed(d time.Duration) slog.Attr { return slog.Duration("elapsed", d) }

// logRecord logs an event of a record.
func (t *Telemetry) logRecord(
	ctx context.Context, message string, id store.ID, route string, attempt int64, more ...slog.Attr,
) {
	attributes := make([]slog.Attr, 0, 5+len(more))
	if route != "" {
		attributes = append(attributes, slog.String("operation", route))
	}
	if id != (store.ID{}) {
		attributes = append(attributes, slog.String("key_hash", id.Hash()))
	}
	if t.config.LogKeys {
		attributes = append(attributes, slog.String("scope", id.Scope), slog.String("key", id.Key))
	}
	if attempt != 0 { // as text, because some JSON readers do not keep all digits of a number
		attributes = append(attributes, slog.String("attempt", strconv.FormatInt(attempt, 10)))
	}
	attributes = append(attributes, more...)
	t.config.Logger.LogAttrs(ctx, slog.LevelDebug, message, attributes...)
}

func (t *Telemetry) logBreaker(ctx context.Context, e breakerChange) {
	from, to := e.BreakerStates()
	t.config.Logger.LogAttrs(ctx, slog.LevelInfo, "onceward: the circuit breaker has changed",
		slog.String("from", from), slog.String("to", to))
}
