package dynamodb

import (
	"context"
	"time"
)

// TestingT is the part of a *testing.T that a [TestClock] needs. A program has none, so it cannot move its time by
// accident.
type TestingT interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// TestClock moves the clock of a store in a test: leases end, and answers expire, without waiting for it. Time runs
// with the service's clock, so much ahead of it, for this store only: another store on the same table uses the
// service's clock. The margin between nodes is left out. Timers of Go do not move: call a worker's RunOnce; a handler
// keeps its deadline.
type TestClock struct{ store *Store }

// lookTimeout bounds the search for existing records.
const lookTimeout = 10 * time.Second

// NewTestClock returns the clock of a store whose table belongs to this test alone. It fails the test if the table
// contains a record: a jump of the clock would damage others' operations. When the test ends the store has the
// service's time again.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	stats, err := s.Stats(ctx)
	if err != nil {
		t.Fatalf("dynamodb: look for records before the clock is moved: %v", err)
	}
	for state, n := range stats.Records {
		if n > 0 {
			t.Fatalf("dynamodb: move the clock of a store: it holds %d records (%s) already: open it on a table of the "+
				"test's own", n, state)
		}
	}
	c := &TestClock{store: s}
	t.Cleanup(func() { c.set(0) })
	return c
}

// Advance moves the clock.
func (c *TestClock) Advance(d time.Duration) {
	c.store.clock.mu.Lock()
	ahead := c.store.clock.ahead
	c.store.clock.mu.Unlock()
	c.set(ahead + d)
}

func (c *TestClock) set(ahead time.Duration) {
	c.store.clock.mu.Lock()
	defer c.store.clock.mu.Unlock()
	if ahead < c.store.clock.ahead {
		c.store.clock.last = time.Time{} // the test has ended: the time may go back
	}
	c.store.clock.ahead = ahead
}
