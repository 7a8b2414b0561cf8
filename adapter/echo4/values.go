package oncewardecho4

import (
	"reflect"
	"sync"

	"github.com/labstack/echo/v4"
)

// keeping wraps echo's own context, and saves the values that the handler replaces with Set, because echo does not list
// the values. Other contexts are not wrapped, because a handler may assert their type.
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

// restore resets the values to the state before the handler ran. A value that was not set becomes nil.
func (c *keeping) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, value := range c.had {
		c.Context.Set(key, value)
	}
}
