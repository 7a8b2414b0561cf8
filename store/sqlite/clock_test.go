package sqlite_test

import (
	"sync/atomic"
	"time"
)

// testClock stands still until it is moved.
type testClock struct{ moved atomic.Int64 }

func (c *testClock) now() time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(c.moved.Load()))
}

func (c *testClock) advance(d time.Duration) { c.moved.Add(int64(d)) }
