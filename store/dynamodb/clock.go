package dynamodb

import (
	"net/http"
	"sync"
	"time"
)

// DynamoDB has no clock that a condition could ask. So each process keeps one of its own, which the service holds to
// the truth: every answer carries the service's time in its Date header, to the second. From when a request was sent
// and answered follows a range in which the difference between the service's clock and this node's must be. The ranges
// of many answers are cut with each other, until what is left is about as wide as a round trip.
//
// A node whose clock is within the range counts by its own clock, so that nodes which are synchronised agree; one that
// is outside counts by the middle of the range. The clock runs on by the node's monotonic clock, so that a step of the
// wall clock does not matter, and it never goes back.
type clock struct {
	mu        sync.Mutex
	base      time.Time     // the node's clock when this one was made
	low, high time.Duration // the range of what is to be added to the node's clock
	measured  time.Time     // when the range was last cut; zero if it never was
	doubted   *span         // the range of the last answer, if that cannot be true together with the one above
	last      time.Time     // the latest time that was given out
	// lastUnique is what [clock.unique] returned last.
	lastUnique int64
	// set replaces all of this in a test, and setMargin the margin.
	set       func() time.Time
	setMargin time.Duration
	// ahead is what a test clock adds.
	ahead time.Duration
}

const (
	// dateStep is how exact a Date header is.
	dateStep = time.Second
	// driftShare is how much a node's clock may drift: one part in so many. The range grows by it between answers.
	driftShare = 2000
	// othersError is how wrong the clock of the node may be that has granted a lease.
	othersError = time.Second
	// notableSkew is from when on an operator should know that a node's clock is wrong.
	notableSkew = 2 * time.Second
)

func newClock() *clock { return &clock{base: time.Now()} }

// local is the node's clock, without the steps that it has made since this one was made.
func (c *clock) local(at time.Time) time.Time { return c.base.Add(at.Sub(c.base)) }

// observe learns from the Date header of an answer.
func (c *clock) observe(sent, received time.Time, header string) {
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	low := date.Sub(c.local(received))
	high := date.Add(dateStep).Sub(c.local(sent))
	if c.measured.IsZero() {
		c.low, c.high, c.measured = low, high, received
		return
	}
	drift := max(received.Sub(c.measured), 0) / driftShare
	before, after := max(c.low-drift, low), min(c.high+drift, high)
	if before > after { // the service's clock was set, or this node was suspended, or one answer is wrong
		if !c.believes(low, high, received) {
			c.doubted = &span{low, high}
			return
		}
		before, after = low, high
	}
	c.low, c.high, c.measured, c.doubted = before, after, received, nil
}

// span is a range of differences.
type span struct{ low, high time.Duration }

// believes reports whether an answer that contradicts all before it counts. One alone does not: a server of the
// service, or a proxy before it, whose clock is wrong would end leases and let records expire before their time. It
// takes two in a row that agree, or the wall clock of this node, which goes on while the node is suspended.
func (c *clock) believes(low, high time.Duration, received time.Time) bool {
	if c.doubted != nil && max(c.doubted.low, low) <= min(c.doubted.high, high) {
		return true
	}
	stepped := received.Round(0).Sub(c.local(received).Round(0))
	return stepped.Abs() >= notableSkew && low-notableSkew <= stepped && stepped <= high+notableSkew
}

// now returns the store's time, to the microsecond.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read is now for a caller that holds the lock.
func (c *clock) read() time.Time {
	if c.set != nil {
		return c.set()
	}
	now := c.local(time.Now()).Add(c.offset() + c.ahead).UTC().Truncate(time.Microsecond)
	if now.Before(c.last) {
		return c.last
	}
	c.last = now
	return now
}

// offset is what is added to the node's clock: nothing, if that may be right.
func (c *clock) offset() time.Duration {
	if c.low <= 0 && c.high >= 0 {
		return 0
	}
	return c.low + (c.high-c.low)/2
}

// skew returns what the node's clock is off by, and false if the service has not told its time.
func (c *clock) skew() (by time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset(), !c.measured.IsZero()
}

// margin is for how long after its end a lease or a record is left alone: two nodes may differ by that.
func (c *clock) margin() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set != nil || c.ahead != 0 {
		return c.setMargin
	}
	if c.measured.IsZero() {
		return othersError + dateStep
	}
	return othersError + c.high - c.low
}

// unique returns the clock in microseconds, and more than it has returned before.
func (c *clock) unique() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUnique = max(c.read().UnixMicro(), c.lastUnique+1)
	return c.lastUnique
}
