// Package part names the parts of what an operation does, such as the messages that it sends, so that each has a
// downstream key of its own, the same in every attempt.
package part

import (
	"context"
	"strconv"
	"sync"

	"github.com/onceward/onceward/store"
)

// Key is the key under which a context holds its [Counter]. The context of an operation answers it with the
// operation's.
type Key struct{}

// Counter tells parts apart that have the same name. The zero value is ready to use.
type Counter struct {
	step string

	mu     sync.Mutex
	counts map[string]int  // by the name that is asked for
	given  map[string]bool // the names that were given, because one with a number may be asked for too
}

// Name returns the name of the next part that is called so. It has the step in front of it and, from the second time on
// that it is asked for, a number behind it: so it is the same in every attempt, if the handler does the same each time.
// Without a counter in the context it is the name as asked for. The context may be a framework's own: see
// [store.ContextName].
func Name(ctx context.Context, asked string) string {
	if counter, ok := store.Value(ctx, Key{}).(*Counter); ok {
		return counter.name(asked)
	}
	return asked
}

// WithStep returns a context for a step of an operation, in which parts are counted from one.
func WithStep(ctx context.Context, step string) context.Context {
	return context.WithValue(ctx, Key{}, &Counter{step: step})
}

func (c *Counter) name(asked string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts, c.given = make(map[string]int), make(map[string]bool)
	}
	name := asked
	for given := true; given; given = c.given[name] {
		c.counts[asked]++
		if n := c.counts[asked]; n > 1 {
			name = asked + " #" + strconv.Itoa(n)
		}
	}
	c.given[name] = true
	if c.step != "" {
		name = strconv.Quote(c.step) + " " + name
	}
	return name
}

// Reset starts counting from one again, because what an earlier run did was undone.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	clear(c.given)
}
