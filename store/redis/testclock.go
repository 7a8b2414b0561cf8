package redis

import (
	"context"
	"fmt"
	"regexp"
	"strings"
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
// with the server's clock, so much ahead of it, for this store only: another store on the same keys, a front and a
// limiter use the server's clock. The server removes expired records by its own clock, which is later; until then they
// count as gone. Timers of Go do not move: call a worker's RunOnce; a handler keeps its deadline.
type TestClock struct {
	t     TestingT
	store *Store
}

// NewTestClock returns the clock of a store whose keys belong to this test alone, for example by [WithPrefix]. It fails
// the test if they contain a record: a jump of the clock would damage others' operations. When the test ends the store
// has the server's time again.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.sender.timeout)
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

// timed returns the script with the time of this sender: all scripts read the server's clock, and in a test they add
// the offset.
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
