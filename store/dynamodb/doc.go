// Package dynamodb keeps records in a table of Amazon DynamoDB. It promises what the service promises: what was
// acknowledged is in three zones of a region, and a condition is decided by one of them. It needs no server of your
// own, and a key costs the same in a small table as in a large one.
//
// It has every capability of package store but [store.Reaper], because the service removes what has expired: reserved
// and phased routes, background work and operators work as on any store. A transactional handler gives its writes to
// [Writes], and they are committed together with the finished record in one request, or not at all. There is no outbox
// and no inbox: DynamoDB Streams publish what was committed, and a handler can collect an item for whoever reads them.
//
// # How it decides
//
// Each record is one item. Every write replaces it on condition that it is still the one that was seen, by the name of
// the write that made it; a condition that is not met returns what is there instead, so that most calls are one
// request: a reservation of a new key, a replay, a mismatch, a heartbeat, a completion. A request that the client
// repeats because its reply was lost finds its own name, and knows that it has landed.
//
// # Time
//
// DynamoDB has no clock that a condition could use. The store counts by the clock of its node, held to the Date headers
// of the service: a node that is an hour off is corrected, to a second at first, and to about a round trip soon. So
// that what is left does no harm, others take a lease for over only one to two seconds after its end. Attempt tokens
// are microseconds of that clock, and always larger than the one that is stored.
//
// # What is read how
//
// Whatever is decided by, and Get, is read with strong consistency. Two sparse indexes follow the table a moment later:
// that of what is due, for the sweeper, the lists of what is in progress and unknown, and the audit; and that of
// provider's ids. They are hints: what they lead to is read again before anything is done about it. Lists of settled
// records, and Stats, scan the table, and are charged for all of it.
package dynamodb
