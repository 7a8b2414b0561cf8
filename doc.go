// Package onceward makes retries safe: a client may send the same request as often as it likes, and the work is done
// once.
//
// A client names each logical operation with a key, in the header Idempotency-Key, and sends the same key with every
// attempt. The first attempt runs. Every later attempt gets the stored answer, byte for byte, even if the connection,
// the process or the machine failed in between. If it cannot be known whether the work was done, it is not done again
// on a guess: the outcome is unknown until a reconciler or an operator has settled it.
//
//	guard, err := onceward.New(store, onceward.Config{Scope: tenantFromToken, Secret: secret})
//	mux := onceward.NewMux() // an http.ServeMux that remembers its routes
//	mux.Handle("POST /payments", guard.HandlerFunc(createPayment, onceward.Transactional()))
//	mux.Handle("POST /transfers", guard.HandlerFunc(transfer, onceward.Reserved(onceward.FailureUnknown)))
//	err = onceward.AuditStrict(mux.Routes()) // no route that changes state was forgotten
//
// # The pieces
//
// A [store.Store] keeps the records and decides: package store/postgres for production, store/sqlite for one machine,
// store/memory for tests. Package store is for authors of other stores.
//
// A [Guard] is the engine over a store. It reserves, executes, keeps the lease by heartbeats, and makes the answer
// durable before the first byte of it is sent. [Guard.Handler] and [Guard.Middleware] protect HTTP handlers, under any
// router that takes an http.Handler; [Guard.Do] protects any function: a message, a job, a call of another kind.
//
// Each route chooses how it executes. [Transactional] puts the claim, the handler's writes and the answer into one
// database transaction, which the handler gets with [Tx], or with postgres.Tx for pgx. [Reserved] records the intent
// first and the answer afterwards, for handlers that call other systems, and needs to know what a failure means: see
// [Failure]. There is no default, because a wrong default would go unnoticed until the first crash. Package phase runs
// operations of several steps.
//
// A duplicate of an operation in flight is refused by [InFlightConflict], made to wait by [InFlightWait], or sent to a
// status page by [InFlightAccepted] and [Guard.StatusHandler].
//
// A handler gets its [Operation] from [FromContext]: to derive the key that it sends to the next system, to check
// whether it still holds the right to execute, and to set how it ended.
//
// Background work, such as the work of packages janitor, reconcile, phase and outbox, is a [Worker]. [Run] runs all
// workers with the server ([Guard.Server]), and stops them in the right order.
//
// Onceward's own answers are a [Problem] (RFC 9457). An [Observer] receives an event for everything that happens.
//
// Package janitor sweeps lost leases and removes what has expired, package reconcile settles outcomes that are unknown,
// and packages outbox and inbox send and apply messages once.
//
// # Rules
//
// Comments cite the rules of the specification, docs/spec.md, by their numbers: (E7), (S6).
package onceward
