package mysql

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// TestingT is the part of a *testing.T that a [TestClock] needs.
// A program has none, so it cannot move its time by accident.
type TestingT interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// TestClock moves the clock of a store in a test: leases end, answers expire, and messages and reconciliations become
// due, without a wait. The time continues by the server's clock, ahead of it by the given amount, for this store alone:
// another store on the same tables has the server's time. Timers of Go do not move: a worker looks again when its
// RunOnce is called, and a handler keeps its deadline.
type TestClock struct {
	store *Store

	mu    sync.Mutex
	ahead time.Duration
}

// testClockTimeout bounds the search for records.
const testClockTimeout = 10 * time.Second

// NewTestClock returns the clock of a store whose tables belong to this test alone, for example in a database that the
// test has created. It fails the test if the tables hold a record: a clock that jumps would harm the operations of
// others. When the test ends, the store has the server's time again.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testClockTimeout)
	defer cancel()
	stats, err := s.Stats(ctx)
	if err != nil {
		t.Fatalf("mysql: look for records before the clock is moved: %v", err)
	}
	for state, n := range stats.Records {
		if n > 0 {
			t.Fatalf("mysql: move the clock of a store: it holds %d records (%s) already: "+
				"open it in a database of the test's own", n, state)
		}
	}
	t.Cleanup(func() { s.setClock(serverClock) })
	return &TestClock{store: s}
}

// Advance moves the clock by d.
func (c *TestClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	c.store.setClock(fmt.Sprintf("(%s + %d)", serverClock, c.ahead.Microseconds()))
}

// setClock sets the expression for the time in all statements.
func (s *Store) setClock(expression string) {
	moved := s.where.Load().names
	moved.clock = expression
	s.where.Store(&rendering{names: moved})
}
