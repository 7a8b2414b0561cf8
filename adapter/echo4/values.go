package oncewardecho4

import (
	"reflect"
	"sync"

	"github.com/labstack/echo/v4"
)

// keeping is echo's own context, and keeps the values that the handler replaces by Set, which echo does not list. Another
// context is not wrapped: a handler may ask for its type.
type keeping struct {
	echo.Context
	mu  sync.Mutex
	had map[string]any
}

// plain is the type of echo's own context.
var plain = reflect.TypeOf(echo.New().NewContext(nil, nil))

// Set implements [echo.Context].
func (c *keeping) Set(key string, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.had[key]; !known {
		if c.had == nil {
			c.had = make(map[string]any)
		}
		c.had[key] = c.Get(key)
	}
	c.Context.Set(key, value)
}

// restore gives the context the values that it had in front of the handler; nil stands for none.
func (c *keeping) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, value := range c.had {
		c.Context.Set(key, value)
	}
}
