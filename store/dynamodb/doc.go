// Package dynamodb keeps records in a table of Amazon DynamoDB. It guarantees what the service guarantees: acknowledged
// writes are in three zones of a region, and one of the zones decides a condition. You need no server of your own, and
// a key costs the same in a small table as in a large one.
//
// It has every capability of package store except [store.Reaper], because the service removes expired items: reserved
// and phased routes, background work and operators work as on any store. A transactional handler passes its writes to
// [Writes], and they are committed together with the finished record in one request, or not at all. There is no outbox
// and no inbox: DynamoDB Streams publish what was committed, and a handler can collect an item for the readers of a
// stream.
//
// # How it decides
//
// Each record is one item. Every write replaces the item on condition that it is still the item that was seen,
// identified by the name of the write that made it. If a condition is not met, the service returns the current item, so
// that most calls are one request: a reservation of a new key, a replay, a mismatch, a heartbeat, a completion. A
// request that the client repeats because its reply was lost finds its own name, which shows that it has landed.
//
// # Time
//
// DynamoDB has no clock that a condition could use. The store uses the clock of its node, corrected by the Date headers
// of the service: the time of a node that is an hour off is right to a second at first, and to about a round trip soon.
// Because of the remaining error, other nodes treat a lease as over only one to two seconds after its end. Attempt
// tokens are microseconds of that clock, and always larger than the stored token.
//
// # How it reads
//
// Every read for a decision, and Get, is strongly consistent. Two sparse indexes follow the table a moment later: the
// index of due items, for the sweeper, the lists of records in progress and unknown records, and the audit; and the
// index of provider's ids. They are hints: an item found by an index is read again before it is used. Lists of settled
// records, and Stats, scan the table, and are charged for all of it.
package dynamodb
