package dynamodb

import (
	"net/http"
	"sync"
	"time"
)

// clock is the clock of one process. DynamoDB has no clock that a condition could use, so each process keeps its own,
// and corrects it by the service: every answer contains the service's time in its Date header, to the second. The times
// at which a request was sent and answered give a range for the difference between the service's clock and this node's
// clock. The ranges of many answers are intersected, until the result is about as wide as a round trip.
//
// A node whose clock is within the range uses its own clock, so that synchronised nodes agree; a node whose clock is
// outside uses the middle of the range. Between answers the time follows the node's monotonic clock, so that a step of
// the wall clock does not matter, and it never goes back.
type clock struct {
	mu        sync.Mutex
	base      time.Time     // the node's clock when this one was made
	low, high time.Duration // the range of the duration to add to the node's clock
	measured  time.Time     // when the range was last narrowed; zero if it never was
	doubted   *span         // the range of the last answer, if it contradicts the range above
	last      time.Time     // the latest time that was returned
	// lastUnique is the last result of [clock.unique].
	lastUnique int64
	// set replaces the clock in a test, and setMargin the margin.
	set       func() time.Time
	setMargin time.Duration
	// ahead is how far a test clock has moved the time.
	ahead time.Duration
}

const (
	// dateStep is the resolution of a Date header.
	dateStep = time.Second
	// driftShare bounds the drift of a node's clock: one part in so many. The range grows by it between answers.
	driftShare = 2000
	// othersError is how wrong the clock of the node that granted a lease may be.
	othersError = time.Second
	// notableSkew is the least error of a node's clock that is reported to an operator.
	notableSkew = 2 * time.Second
)

func newClock() *clock { return &clock{base: time.Now()} }

// local returns the node's clock, without the steps that the wall clock has made since this clock was made.
func (c *clock) local(at time.Time) time.Time { return c.base.Add(at.Sub(c.base)) }

// observe narrows the range by the Date header of an answer.
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

// believes reports whether an answer that contradicts all answers before it counts. A single answer does not: a server
// of the service, or a proxy before it, with a wrong clock would end leases and let records expire too early. It takes
// two successive answers that agree, or the agreement of this node's wall clock, which keeps running while the node is
// suspended.
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

// offset returns the duration to add to the node's clock: zero, if the node's clock may be right.
func (c *clock) offset() time.Duration {
	if c.low <= 0 && c.high >= 0 {
		return 0
	}
	return c.low + (c.high-c.low)/2
}

// skew returns the error of the node's clock, and false if no answer of the service has contained its time.
func (c *clock) skew() (by time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset(), !c.measured.IsZero()
}

// margin returns how long a lease or a record is left alone after its end: the clocks of two nodes may differ by that.
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

// unique returns the clock in microseconds, but always more than its last result.
func (c *clock) unique() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUnique = max(c.read().UnixMicro(), c.lastUnique+1)
	return c.lastUnique
}
