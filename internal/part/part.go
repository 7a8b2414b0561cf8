// Package part names the parts of an operation, such as the messages that it sends,
// so that each part has its own downstream key, which is the same in every attempt.
package part

import (
	"context"
	"strconv"
	"sync"

	"github.com/onceward/onceward/store"
)

// Key is the key of the [Counter] in a context. The context of an operation returns the operation's counter.
type Key struct{}

// Counter distinguishes parts with the same name. The zero value is ready to use.
type Counter struct {
	step string

	mu     sync.Mutex
	counts map[string]int  // by the name as asked for
	given  map[string]bool // the names in use, because a caller may also ask for a name with a number
}

// Name returns the name of the next part with the given name. It is prefixed with the step. From the second part on it
// has a number as suffix, so that it is the same in every attempt if the handler does the same each time. Without a
// counter in the context, Name returns the given name. The context may be a framework's own: see [store.ContextName].
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

// Reset restarts the counting from one, because an earlier run was undone.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	clear(c.given)
}
