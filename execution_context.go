package onceward

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/internal/sqltx"
)

// detachedContext has the values of another context and nothing of its end, as [context.WithoutCancel] does, without an
// allocation for each value that is looked up: an observer looks values up at each event.
type detachedContext struct{ context.Context }

// Deadline implements [context.Context].
func (*detachedContext) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements [context.Context].
func (*detachedContext) Done() <-chan struct{} { return nil }

// Err implements [context.Context].
func (*detachedContext) Err() error { return nil }

// lazyContext is a context with a deadline that costs nothing until it is waited for: no timer, no channel and no
// allocation on the path of a quick handler. Once asked for Done it hands everything to a context of the standard
// library, whose children then need no goroutine to follow it.
//
// It takes values from its parent, never cancellation: the client going away does not cancel the work (E6).
type lazyContext struct {
	parent   context.Context
	deadline time.Time
	overdue  error // the cause when the deadline passes
	leased   bool  // it may be ended before, with a cause
	op       *Operation

	mu       sync.Mutex
	inner    context.Context
	cancel   context.CancelCauseFunc // if it is leased
	stop     context.CancelFunc
	released bool
}

// unused returns the context, or a new one if it was started before: who was handed that may still hold it.
func (c *lazyContext) unused() *lazyContext {
	if c.parent != nil {
		return new(lazyContext)
	}
	return c
}

// start makes the context ready. The parent must not be cancellable, such as a detachedContext.
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
	if inner := c.needed(); inner != nil {
		return inner.Err()
	}
	return nil
}

// Value implements [context.Context].
func (c *lazyContext) Value(key any) any {
	if c.op != nil {
		switch key {
		case operationKey{}:
			return c.op
		case part.Key{}:
			return &c.op.parts
		}
	}
	// context.Cause asks here for the context that knows the cause.
	if inner := c.needed(); inner != nil {
		return inner.Value(key)
	}
	return c.parent.Value(key)
}

// needed returns the context behind this one if it was waited for or has ended, and nil otherwise.
func (c *lazyContext) needed() context.Context {
	c.mu.Lock()
	inner, released := c.inner, c.released
	c.mu.Unlock()
	if inner == nil && (released || !time.Now().Before(c.deadline)) {
		return c.settled()
	}
	return inner
}

// settled returns the context of the standard library that stands behind this one.
func (c *lazyContext) settled() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		parent := c.parent
		if c.leased {
			parent, c.cancel = context.WithCancelCause(parent)
		}
		c.inner, c.stop = context.WithDeadlineCause(parent, c.deadline, c.overdue)
		if c.released {
			c.free()
		}
	}
	return c.inner
}

// end cancels a context that is leased for a reason that context.Cause tells.
func (c *lazyContext) end(cause error) {
	c.settled()
	c.cancel(cause)
}

// release ends the context and frees what it holds; who asks later is told that it has ended.
func (c *lazyContext) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	if c.inner != nil {
		c.free()
	}
}

// free ends the context behind this one.
func (c *lazyContext) free() {
	c.stop()
	if c.cancel != nil {
		c.cancel(nil)
	}
}

// watchedContext notes that a pool asked on behalf of the handler (see [sqltx.AskedPool]), and that a value was taken which the caller's context does not have: the transaction, since that is
// what a store adds.
type watchedContext struct {
	context.Context
	caller context.Context
	op     *Operation
}

// Value implements [context.Context].
func (c *watchedContext) Value(key any) any {
	value := c.Context.Value(key)
	if _, asked := key.(sqltx.PoolKey); asked {
		if value != nil {
			c.op.askedPool.Store(true)
		}
	} else if value != nil && c.caller.Value(key) == nil {
		c.op.tookTx.Store(true)
	}
	return value
}
