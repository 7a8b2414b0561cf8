package limit

import (
	"context"
	"time"
)

// Counters holds counts that the nodes of a service share. Package store/redis has one.
//
// A node does not ask for each request. It takes a portion of a scope's allowance, which it uses up by itself, or gives
// back after a moment. The closer a scope is to its limit the smaller the portions become, down to the one that a
// request needs now, so that all nodes together never allow more than the limit,
// and a low limit can be used to the last.
type Counters interface {
	// Take first takes back what was not used. Of what is left then, it grants what is needed, if there is so much, and up
	// to what is wanted, but of that no more than the part that [PortionShare] says. It is one atomic step, by the clock
	// of the counter.
	//
	// A Take whose reply was lost is sent again, with the same Number. It takes nothing back a second time, and gets what
	// was granted the first time. A Take with a smaller Number than the last one of its Taker arrived late: it changes
	// nothing and is granted nothing.
	Take(ctx context.Context, t Take) (Grant, error)
}

// PortionShare is the divisor of what is left: no more than that part is granted beyond what is needed.
const PortionShare = 8

// ActiveParts is into how many parts the retention of a key is divided: an active key is counted out at the end of the
// part in which it expires.
const ActiveParts = parts

// RepeatWithin is how long a [Take] whose reply was lost is sent again. Counters remember the last Take of a Taker for
// twice as long at least.
const RepeatWithin = 5 * time.Minute

// Take is what a node asks of [Counters].
type Take struct {
	// Scope and Name are what is counted; Name is that of a limit, such as [onceward.LimitNewKeys].
	Scope, Name string
	// Rate is the limit in time. A Limit of zero is none.
	Rate Rate
	// Active is the limit of active keys, and zero is none; Retention is how long one is kept.
	Active    int
	Retention time.Duration
	// Need is for how many there are requests now, and Want, no less, how many could be used soon.
	Need, Want int
	// Unused is how many of an earlier grant come back. Undone is how many of it were used for work that was undone: they
	// stay used of the rate, and count as active keys no more. UnusedEnd is the End of that grant: zero for the last, and
	// [OldestEnd] for the first.
	Unused, Undone int
	UnusedEnd      int64
	// Taker names who asks, and Number counts its asks upwards. A Taker has one Take under way at a time. Without a Taker
	// a Take is not sent again.
	Taker  string
	Number int64
}

// OldestEnd is the Take.UnusedEnd of a key that is counted out before its time.
const OldestEnd = -1

// Grant is what a node was given.
type Grant struct {
	// Granted is how many.
	Granted int
	// End names the part of time in which active keys of this grant are counted out.
	End int64
	// Limit is the name of the limit that stands in the way if nothing was granted of what was needed, and After is when
	// it is worth asking again.
	Limit string
	After time.Duration
}
