package onceward

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/part"
	"github.com/onceward/onceward/internal/sqltx"
)

// detachedContext has the values of another context, but neither its deadline nor its cancellation, like
// [context.WithoutCancel]. It needs no allocation for each value that is looked up: an observer looks values up at each
// event.
type detachedContext struct{ context.Context }

// Deadline implements [context.Context].
func (*detachedContext) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements [context.Context].
func (*detachedContext) Done() <-chan struct{} { return nil }

// Err implements [context.Context].
func (*detachedContext) Err() error { return nil }

// lazyContext is a context with a deadline that costs nothing until something waits for it: no timer, no channel and no
// allocation on the path of a quick handler. The first call of Done creates a context of the standard library, whose
// children then need no goroutine to follow it.
//
// It takes values from its parent, never cancellation: a client that leaves does not cancel the work (rule E6).
type lazyContext struct {
	parent   context.Context
	deadline time.Time
	overdue  error // the cause when the deadline passes
	leased   bool  // it may end early, with a cause
	op       *Operation

	mu       sync.Mutex
	inner    context.Context
	cancel   context.CancelCauseFunc // set if leased
	stop     context.CancelFunc
	released bool
}

// unused returns the context, or a new one if this one was started before: an earlier run may still hold it.
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
	// context.Cause looks up the context that knows the cause.
	if inner := c.needed(); inner != nil {
		return inner.Value(key)
	}
	return c.parent.Value(key)
}

// needed returns the inner context if something waited for it or it has ended, and nil otherwise.
func (c *lazyContext) needed() context.Context {
	c.mu.Lock()
	inner, released := c.inner, c.released
	c.mu.Unlock()
	if inner == nil && (released || !time.Now().Before(c.deadline)) {
		return c.settled()
	}
	return inner
}

// settled returns the inner context of the standard library, and creates it if needed.
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

// end cancels a leased context with a cause.
func (c *lazyContext) end(cause error) {
	c.settled()
	c.cancel(cause)
}

// release ends the context and frees its resources. Later calls see a cancelled context.
func (c *lazyContext) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	if c.inner != nil {
		c.free()
	}
}

// free ends the inner context.
func (c *lazyContext) free() {
	c.stop()
	if c.cancel != nil {
		c.cancel(nil)
	}
}

// watchedContext records that the work took the transaction, and that a pool asked whether the transaction holds one of
// its connections, see [sqltx.AskedPool]. The work took the transaction if it read a value that the caller's context
// does not have, because a store adds nothing else to the context.
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
