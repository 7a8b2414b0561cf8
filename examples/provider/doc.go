// Package provider is a fake payment provider: a real HTTP server with a durable ledger, its own idempotency, look-ups,
// webhooks, and faults that can be chosen for each request. Tests, examples and chaos runs use it as a system outside
// of the database, where an effect cannot be rolled back and an answer can be lost.
//
// # What it serves
//
//	POST   /charges            makes a charge: 201, or 402 if it is declined
//	GET    /charges/{id}       one charge
//	GET    /charges            a page of charges: idempotency_key, reference, created_from, created_to, after, limit
//	POST   /refunds            gives back all or a part of a charge
//	GET    /refunds            a page of refunds: as for charges, with the reference of the refund itself
//	PUT    /faults             replaces the faults
//	DELETE /faults             removes the faults and lets all held requests continue
//	GET    /stats              how often each kind of fault has struck since the start
//	GET    /arrived/{name}     answers as soon as the named fault has struck (count=n: n times)
//	POST   /release/{name}     lets the requests continue that the named fault holds
//	PUT    /webhook            sets the destination of events
//
// # What it promises
//
// A charge or a refund is one line in an append-only file, which is synced before the request is answered. The ledger
// is therefore the truth about what happened, even after the process was killed: an incomplete line never happened, and
// every other line did. At the next start, the charges and refunds, their keys and their IDs are read from it. Only one
// process may use a ledger at a time.
//
// Each new charge and each new refund sends one event to the webhook; a replay sends none. The ID of the event derives
// from the ID of the charge or the refund, so that a receiver recognises duplicates by it.
//
// Faults strike only the requests to /charges and /refunds, and only those that are well formed. See [Faults].
package provider
