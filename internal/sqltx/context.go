package sqltx

import (
	"context"
	"fmt"
	"sync/atomic"
)

// GaveUp returns the error of a transaction whose connection was lost because the context of a statement ended. The
// error wraps the cause of that context.
func GaveUp(ctx context.Context, statement string) error {
	return fmt.Errorf("the connection was lost with the statement %.200q, because its own context ended: %w", statement,
		context.Cause(ctx))
}

// WhileBusy returns a context for a driver, which ends with ctx only while the work waits for the connection. A
// driver closes the connection when its context ends. If rows are open but not being read, database/sql can close
// the rows instead, and the connection is kept. The caller calls stop when its statement is over, because a
// handler may run many statements.
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
