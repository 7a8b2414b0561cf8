package consuming_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/consuming"
	"github.com/onceward/onceward/store"
)

// rememberAll is an inbox that has had no event, or all of them.
type rememberAll struct {
	inbox.Store
	had bool
}

func (r rememberAll) InTx(ctx context.Context, work func(context.Context) error) error {
	return work(store.ContextWithTx(ctx, new(sql.Tx)))
}

func (r rememberAll) RememberEvent(context.Context, *sql.Tx, string, string) (bool, error) {
	return !r.had, nil
}

type traceKey struct{}

// headerTrace is a propagator that takes the trace from one header.
type headerTrace struct{ onceward.Propagator }

func (headerTrace) Extract(ctx context.Context, headers map[string]string) context.Context {
	return context.WithValue(ctx, traceKey{}, headers["traceparent"])
}

func TestWatchTellsAndContinuesTheTrace(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, each := range map[string]struct {
		had, applied bool
		err          error
	}{"applied": {applied: true}, "repeated": {had: true}, "failed": {err: broken}} {
		var told inbox.HandledEvent
		var in any
		watch := consuming.Watch{
			Propagator: headerTrace{}, Backlog: func() int { return 7 },
			Observer: onceward.ObserverFunc(func(ctx context.Context, e onceward.ObserverEvent) {
				told, in = e.(inbox.HandledEvent), ctx.Value(traceKey{})
			}),
		}
		headers := func() map[string]string {
			return map[string]string{"traceparent": "trace", "ce_time": "2026-01-02T03:04:05Z"}
		}
		applied, err := watch.Handle(t.Context(), inbox.New(rememberAll{had: each.had}), "mailer", "event", headers,
			func(ctx context.Context) error {
				if ctx.Value(traceKey{}) != "trace" {
					t.Errorf("%s: the handler is not in the trace", name)
				}
				return each.err
			})
		if applied != each.applied || !errors.Is(err, each.err) {
			t.Errorf("%s: %v, %v", name, applied, err)
		}
		if told.Consumer != "mailer" || told.EventID != "event" || told.Applied != each.applied ||
			!errors.Is(told.Err, each.err) || !told.Sent.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) ||
			told.Backlog != 7 || in != "trace" {
			t.Errorf("%s: %+v in %v", name, told, in)
		}
	}
}

// TestAPanicOfTheObserverIsNotTheMessages: it was applied, and the process continues.
func TestAPanicOfTheObserverIsNotTheMessages(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	watch := consuming.Watch{
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		Observer: onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) { panic("observer") }),
	}
	applied, err := watch.Handle(t.Context(), inbox.New(rememberAll{}), "mailer", "event",
		func() map[string]string { return nil }, func(context.Context) error { return nil })
	if !applied || err != nil || !strings.Contains(log.String(), "the observer panicked") {
		t.Errorf("%v, %v, and the log is %s", applied, err, log.String())
	}
}
