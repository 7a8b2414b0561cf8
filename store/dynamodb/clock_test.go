package dynamodb

import (
	"net/http"
	"testing"
	"time"
)

// answered lets a clock see an answer of a service whose clock is ahead of this node's, after a round trip.
func answered(c *clock, at time.Time, ahead, roundTrip time.Duration) {
	served := at.Add(roundTrip / 2).Add(ahead)
	c.observe(at, at.Add(roundTrip), served.UTC().Format(http.TimeFormat))
}

// TestClockIsHeldToTheService: a node whose clock is an hour off counts by the service's, to a second at first, and to
// about a round trip after a few answers (S3, scenario 4).
func TestClockIsHeldToTheService(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, -3 * time.Second, 0, 3 * time.Second, time.Hour} {
		c := newClock()
		wrong := func() time.Duration {
			by, _ := c.skew()
			return (by - ahead).Abs()
		}
		answered(c, c.base, ahead, 10*time.Millisecond)
		if off := wrong(); off > dateStep+10*time.Millisecond {
			t.Errorf("a service that is %s ahead: after one answer the clock is wrong by %s", ahead, off)
		}
		if m := c.margin(); m < othersError+dateStep || m > othersError+dateStep+20*time.Millisecond {
			t.Errorf("the margin is %s after one answer", m)
		}
		for i := range 100 {
			answered(c, c.base.Add(time.Duration(i)*37*time.Millisecond), ahead, 10*time.Millisecond)
		}
		if off := wrong(); off > 60*time.Millisecond {
			t.Errorf("a service that is %s ahead: after many answers the clock is wrong by %s", ahead, off)
		}
	}
}

// TestClockOfASoundNode: a node whose clock agrees with the service's keeps it, to the microsecond: nodes that are
// synchronised agree with each other.
func TestClockOfASoundNode(t *testing.T) {
	t.Parallel()
	c := newClock()
	for i := range 100 {
		answered(c, c.base.Add(time.Duration(i)*37*time.Millisecond), 2*time.Millisecond, 10*time.Millisecond)
	}
	if skew, known := c.skew(); skew != 0 || !known {
		t.Errorf("a clock that may be right is moved by %s (%t)", skew, known)
	}
}

// TestClockFollows: the service's clock is set, or another server of it answers: the newest answers count. What the
// clock has said it does not take back.
func TestClockFollows(t *testing.T) {
	t.Parallel()
	c := newClock()
	answered(c, c.base, time.Hour, time.Millisecond)
	before := c.now()
	for i := range 2 {
		answered(c, c.base.Add(time.Duration(i+1)*time.Second), -time.Hour, time.Millisecond)
	}
	if after := c.now(); after.Before(before) {
		t.Errorf("the clock went back from %s to %s", before, after)
	}
	if skew, _ := c.skew(); skew > -59*time.Minute {
		t.Errorf("the clock is moved by %s, want an hour back", skew)
	}
	c.observe(c.base, c.base, "no date")
	for last, i := int64(0), 0; i < 1000; i++ {
		number := c.unique()
		if number <= last {
			t.Fatalf("%d was drawn after %d", number, last)
		}
		last = number
	}
}

// TestClockDoubts: one answer with a time that is far from what all others have said moves nothing: leases would end,
// and records expire, before their time (I12).
func TestClockDoubts(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		c := newClock()
		for i := range 10 {
			answered(c, c.base.Add(time.Duration(i)*time.Millisecond), 0, time.Millisecond)
		}
		before := c.now()
		answered(c, c.base.Add(20*time.Millisecond), ahead, time.Millisecond)
		if off := c.now().Sub(before); off < 0 || off > time.Minute {
			t.Errorf("I12: one answer that is %s ahead moves the clock by %s", ahead, off)
		}
		answered(c, c.base.Add(30*time.Millisecond), 0, time.Millisecond)
		if skew, _ := c.skew(); skew != 0 {
			t.Errorf("the clock stays moved by %s", skew)
		}
	}
}
