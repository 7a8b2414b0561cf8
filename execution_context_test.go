package onceward

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errOverdue = errors.New("overdue")

type valueKey struct{}

// newLazyContext returns a context that ends in a minute.
func newLazyContext() *lazyContext {
	parent := context.WithValue(context.Background(), valueKey{}, "value")
	return new(lazyContext).start(context.WithoutCancel(parent), time.Now().Add(time.Minute), errOverdue)
}

// newLeasedContext returns one that may be ended before.
func newLeasedContext() *lazyContext {
	c := newLazyContext()
	c.leased = true
	return c
}

// lazyContexts are the kinds that there are.
var lazyContexts = map[string]func() *lazyContext{"leased": newLeasedContext, "not leased": newLazyContext}

func TestLazyContextCostsNothingUntilItIsWaitedFor(t *testing.T) {
	c := newLazyContext()
	allocations := testing.AllocsPerRun(100, func() {
		if c.Err() != nil {
			t.Error("E6: the context ended")
		}
		if deadline, ok := c.Deadline(); !ok || deadline.IsZero() {
			t.Error("E6: the context has no deadline")
		}
	})
	c.release()
	if allocations != 0 {
		t.Errorf("%v allocations, want none", allocations)
	}
}

func TestLazyContextEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(*lazyContext){
		"waited for": func(c *lazyContext) { <-c.Done() },
		"asked late": func(*lazyContext) { time.Sleep(time.Minute) },
	} {
		for kind, check := range map[string]func(*testing.T, *lazyContext){
			"Err": func(t *testing.T, c *lazyContext) {
				if err := c.Err(); err != context.DeadlineExceeded {
					t.Errorf("E6: Err() = %v", err)
				}
			},
			"Cause": func(t *testing.T, c *lazyContext) {
				if cause := context.Cause(c); cause != errOverdue {
					t.Errorf("E6: the cause is %v, want the deadline's own", cause)
				}
			},
			"Done": func(_ *testing.T, c *lazyContext) { <-c.Done() },
			"child": func(t *testing.T, c *lazyContext) {
				child, cancel := context.WithCancel(c)
				defer cancel()
				if cause := context.Cause(child); cause != errOverdue {
					t.Errorf("E6: the cause of a child is %v", cause)
				}
			},
		} {
			for lease, open := range lazyContexts {
				t.Run(name+" "+kind+" "+lease, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						c := open()
						defer c.release()
						if err := c.Err(); err != nil {
							t.Errorf("E6: it ended before its deadline: %v", err)
						}
						look(c)
						check(t, c)
					})
				})
			}
		}
	}
}

func TestLazyContextEndsForAReason(t *testing.T) {
	t.Parallel()
	for name, waited := range map[string]bool{"waited for": true, "not waited for": false} {
		t.Run(name, func(t *testing.T) {
			c := newLeasedContext()
			defer c.release()
			if waited {
				c.Done()
			}
			c.end(ErrLeaseLost)
			<-c.Done()
			if c.Err() != context.Canceled || context.Cause(c) != ErrLeaseLost {
				t.Errorf("S5: Err() = %v, cause %v", c.Err(), context.Cause(c))
			}
			if c.Value(valueKey{}) != "value" {
				t.Error("E6: the value is lost")
			}
			c.end(errOverdue)
			if context.Cause(c) != ErrLeaseLost {
				t.Error("S5: the first cause does not stay")
			}
		})
	}
}

func TestLazyContextEndsWhenItIsReleased(t *testing.T) {
	t.Parallel()
	for name, waited := range map[string]bool{"waited for": true, "not waited for": false} {
		for lease, open := range lazyContexts {
			t.Run(name+" "+lease, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := open()
					if waited {
						c.Done()
					}
					c.release()
					// A goroutine that the handler left running sees that nothing waits for it any more.
					if err := c.Err(); err != context.Canceled {
						t.Errorf("E6: Err() = %v after the handler has ended, want Canceled", err)
					}
					started := time.Now()
					<-c.Done()
					if waitedFor := time.Since(started); waitedFor != 0 {
						t.Errorf("E6: Done came after %s", waitedFor)
					}
				})
			})
		}
	}
}

func TestChildrenOfALazyContextEndWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newLeasedContext()
		child, cancel := context.WithTimeout(c, time.Hour)
		defer cancel()
		afterwards := make(chan struct{})
		stop := context.AfterFunc(child, func() { close(afterwards) })
		defer stop()
		c.end(ErrLeaseLost)
		<-afterwards
		if context.Cause(child) != ErrLeaseLost {
			t.Errorf("S5: the cause of a child is %v", context.Cause(child))
		}
		c.release()
	})
}

func TestTheOperationIsInTheContext(t *testing.T) {
	t.Parallel()
	c := newLazyContext()
	defer c.release()
	if FromContext(c) != nil {
		t.Error("an operation in a context without one")
	}
	c.op = &Operation{name: "pay"}
	child, cancel := context.WithCancel(context.WithValue(c, valueKey{}, "another"))
	defer cancel()
	if got := FromContext(child).Name(); got != "pay" {
		t.Errorf("FromContext finds %q, want pay", got)
	}
}

// TestDetachedContext: it has the values of the caller's context and nothing of its end, as the standard library's own.
func TestDetachedContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	caller, leave := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	caller, release := context.WithTimeout(caller, time.Hour)
	defer release()
	leave(errors.New("the caller left"))
	var detached context.Context = &detachedContext{caller}
	if _, ok := detached.Deadline(); ok || detached.Done() != nil || detached.Err() != nil ||
		context.Cause(detached) != nil {
		t.Errorf("it ends with the caller: %v", context.Cause(detached))
	}
	if got := detached.Value(key{}); got != "value" {
		t.Errorf("its value is %v", got)
	}
	child, cancel := context.WithCancelCause(detached)
	if child.Err() != nil {
		t.Errorf("a child has ended: %v", context.Cause(child))
	}
	ended := errors.New("ended")
	cancel(ended)
	if context.Cause(child) != ended {
		t.Errorf("the child ended because of %v", context.Cause(child))
	}
}
