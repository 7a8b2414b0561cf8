// Package provider is a fake payment provider: a real HTTP server with a durable ledger, its own idempotency, look-ups,
// webhooks, and faults that can be ordered to the request. Tests, examples and chaos runs use it as the world outside
// the database, where an effect cannot be rolled back and an answer can be lost.
//
// # What it serves
//
//	POST   /charges            makes a charge: 201, or 402 if it is declined
//	GET    /charges/{id}       one charge
//	GET    /charges            a page of charges: idempotency_key, reference, created_from, created_to, after, limit
//	POST   /refunds            gives back all or a part of a charge
//	GET    /refunds            a page of refunds: as for charges, where the reference is that of the refund itself
//	PUT    /faults             replaces the faults
//	DELETE /faults             removes the faults and lets all held requests go on
//	GET    /stats              how often each kind of fault has struck since the start
//	GET    /arrived/{name}     answers as soon as the named fault has struck (count=n: n times)
//	POST   /release/{name}     lets go what the named fault holds
//	PUT    /webhook            says where events are sent
//
// # What it promises
//
// A charge or a refund is one line in an append-only file, which is synced before anything is answered. So the ledger
// is the truth about what happened, also after the process was killed: a line that was cut off never happened, any
// other did. The charges and refunds, their keys and their ids are read back from it at the next start. One process may
// use a ledger at a time.
//
// Each new charge and each new refund sends one event to the webhook; a replay sends none. The ID of the event follows
// from that of the charge or the refund, so a receiver knows a duplicate by it.
//
// Faults strike only the requests to /charges and /refunds, and only those that are well formed. See [Faults].
package provider
