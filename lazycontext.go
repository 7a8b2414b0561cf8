package onceward

import (
	"context"
	"sync"
	"time"
)

// lazyContext is a context with a deadline that costs nothing until somebody waits for it: no timer, no channel and no
// allocation on the path of a quick handler. Once asked for Done it hands everything to a context of the standard
// library, whose children then need no goroutine to follow it.
//
// It takes values from its parent, never cancellation: the client going away does not cancel the work (E6).
type lazyContext struct {
	parent   context.Context
	deadline time.Time
	overdue  error // the cause when the deadline passes
	op       *Operation

	mu     sync.Mutex
	inner  context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
}

// start makes the context ready. The parent must not be cancellable: see [context.WithoutCancel].
func (c *lazyContext) start(parent context.Context, deadline time.Time, overdue error) *lazyContext {
	c.parent, c.deadline, c.overdue = parent, deadline, overdue
	return c
}

// Deadline implements [context.Context].
func (c *lazyContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements [context.Context].
func (c *lazyContext) Done() <-chan struct{} { return c.settled().Done() }

// Err implements [context.Context].
func (c *lazyContext) Err() error {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner == nil && time.Now().Before(c.deadline) {
		return nil
	}
	return c.settled().Err()
}

// Value implements [context.Context].
func (c *lazyContext) Value(key any) any {
	if key == (operationKey{}) && c.op != nil {
		return c.op
	}
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return c.parent.Value(key)
}

// settled returns the context of the standard library that stands behind this one.
func (c *lazyContext) settled() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		cancellable, cancel := context.WithCancelCause(c.parent)
		c.cancel = cancel
		c.inner, c.stop = context.WithDeadlineCause(cancellable, c.deadline, c.overdue)
	}
	return c.inner
}

// end cancels the context for a reason that context.Cause tells.
func (c *lazyContext) end(cause error) {
	c.settled()
	c.cancel(cause)
}

// release frees what the context holds. It does not matter if nobody ever waited for it.
func (c *lazyContext) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		c.stop()
		c.cancel(nil)
	}
}
