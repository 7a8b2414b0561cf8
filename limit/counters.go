package limit

import (
	"context"
	"time"
)

// Counters holds counts that the nodes of a service share. Package store/redis has an implementation.
//
// A node does not query them for each request. It takes a portion of a scope's allowance, and uses it up, or returns it
// after a moment. The closer a scope is to its limit the smaller the portions become, down to what a request needs now,
// so that all nodes together never allow more than the limit, and a low limit can be used completely.
type Counters interface {
	// Take first returns the unused part of an earlier grant. Of the remaining allowance it then grants what is needed, if
	// there is enough, and up to what is wanted, but beyond the need at most the part set by [PortionShare]. It is one
	// atomic step, by the clock of the counter.
	//
	// A Take whose reply was lost is sent again, with the same Number. It returns nothing a second time, and gets the
	// first grant. A Take with a smaller Number than the last one of its Taker arrived late: it changes nothing and gets
	// nothing.
	Take(ctx context.Context, t Take) (Grant, error)
}

// PortionShare divides the remaining allowance: at most that part is granted beyond the need.
const PortionShare = 8

// ActiveParts is the number of parts of a key's retention: an active key is counted out at the end of the part in which
// it expires.
const ActiveParts = parts

// RepeatWithin is how long a [Take] whose reply was lost is sent again. Counters remember the last Take of a Taker for
// at least twice as long.
const RepeatWithin = 5 * time.Minute

// Take is a node's request to [Counters].
type Take struct {
	// Scope and Name identify the count; Name is the name of a limit, such as [onceward.LimitNewKeys].
	Scope, Name string
	// Rate is the limit over time. A Limit of zero means no limit.
	Rate Rate
	// Active is the limit of active keys, and zero means no limit; Retention is how long a key is kept.
	Active    int
	Retention time.Duration
	// Need is the number of requests that wait now, and Want, which is at least Need, the number that could be used
	// soon.
	Need, Want int
	// Unused is how many of an earlier grant are returned. Undone is how many of it were used for work that was undone:
	// they stay used in the rate, and no longer count as active keys. UnusedEnd is the End of that grant: zero for the
	// last, and [OldestEnd] for the first.
	Unused, Undone int
	UnusedEnd      int64
	// Taker identifies the caller, and Number counts its requests upwards. A Taker has one Take in progress at a time.
	// Without a Taker a Take is not sent again.
	Taker  string
	Number int64
}

// OldestEnd is the Take.UnusedEnd of a key that is counted out early.
const OldestEnd = -1

// Grant is the answer to a [Take].
type Grant struct {
	// Granted is the number of requests granted.
	Granted int
	// End identifies the part of time at whose end active keys of this grant are counted out.
	End int64
	// Limit is the name of the reached limit if nothing of the need was granted, and After is how long to wait before the
	// next request.
	Limit string
	After time.Duration
}
