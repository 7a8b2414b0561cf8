package sqltx

import (
	"context"
	"fmt"
	"sync/atomic"
)

// GaveUp is the error of a transaction whose connection was lost with a statement that was given up. It wraps the cause
// of the statement's context.
func GaveUp(ctx context.Context, statement string) error {
	return fmt.Errorf("the connection was lost with the statement %.200q, because its own context ended: %w", statement,
		context.Cause(ctx))
}

// WhileBusy returns a context for a driver. It ends when ctx ends, but only while the work waits for the connection: a
// driver closes a connection whose context ends, although rows that are open and not being read could be closed by
// database/sql, and the connection kept. The caller stops the context when its statement is over, because a handler may
// run many statements.
func WhileBusy(ctx context.Context, busy *atomic.Bool) (own context.Context, stop context.CancelFunc) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	if ctx.Done() == nil {
		return own, func() { cancel(nil) }
	}
	leave := context.AfterFunc(ctx, func() {
		if busy.Load() {
			cancel(context.Cause(ctx))
		}
	})
	return own, func() {
		leave()
		cancel(nil)
	}
}
