package redis

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// TestingT is what of a *testing.T a [TestClock] needs. A program has none, so it cannot move its time by accident.
type TestingT interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// TestClock moves the clock of a store in a test: leases end, and answers expire, without waiting for it. Time goes on
// by the server's clock, so much ahead of it, for this store alone: another one on the same keys, a front and a limiter
// have the server's. The server removes what has expired by its own clock, which is later; until then it counts as
// gone.
// Timers of Go do not move: a worker looks again when its RunOnce is called, and a handler keeps its deadline.
type TestClock struct {
	t     TestingT
	store *Store
}

// NewTestClock returns the clock of a store whose keys belong to this test alone, such as by [WithPrefix]. It fails the
// test if they hold a record: a clock that jumps would do harm to others' operations. When the test ends the store has
// the server's time again.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	stats, err := s.Stats(ctx)
	if err != nil {
		t.Fatalf("redis: look for records before the clock is moved: %v", err)
	}
	for state, n := range stats.Records {
		if n > 0 {
			t.Fatalf("redis: move the clock of a store: it holds %d records (%s) already: "+
				"open it with a prefix of the test's own", n, state)
		}
	}
	c := &TestClock{t: t, store: s}
	t.Cleanup(func() { c.set(0) })
	return c
}

// Advance moves the clock.
func (c *TestClock) Advance(d time.Duration) {
	c.set(time.Duration(c.store.sender.ahead.Load())*time.Microsecond + d)
}

func (c *TestClock) set(ahead time.Duration) {
	c.store.sender.ahead.Store(ahead.Microseconds())
	if aside := c.store.sender.aside; aside != nil {
		aside.ahead.Store(ahead.Microseconds())
	}
}

var timeCall = regexp.MustCompile(`(redis\.)?call\('TIME'\)`)

// timed returns the script with the time of this sender: all scripts ask the server for it, and in a test they add what
// that is ahead.
func (s *sender) timed(p *script) *script {
	ahead := s.ahead.Load()
	if ahead == 0 {
		return p
	}
	flags, body, _ := strings.Cut(p.source, "\n")
	moved := newScriptFrom(flags + "\n" + fmt.Sprintf(`local function ahead(t)
	local now = t[1] * 1000000 + t[2] + %d
	return {math.floor(now / 1000000), now %% 1000000}
end
`, ahead) + timeCall.ReplaceAllString(body, "ahead($0)"))
	moved.unacked = p.unacked
	return moved
}
