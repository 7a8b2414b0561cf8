// Package onceward makes retries safe: a client may send the same request as often as it likes, and the work is done
// once.
//
// A client names each logical operation with a key, in the header Idempotency-Key, and sends the same key with every
// attempt. The first attempt runs. Each later one gets the stored answer, byte for byte, whatever became of the
// connection, the process or the machine in between. Where it cannot be known whether the work was done, it is not done
// again on a guess: the outcome is unknown until a reconciler or an operator has settled it.
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
// store/memory for tests. Package store is for authors of others.
//
// A [Guard] is the engine over a store. It reserves, executes, keeps the lease by heartbeats, and makes the answer
// durable before the first byte of it is sent. [Guard.Handler] and [Guard.Middleware] protect what speaks HTTP, under
// any router that takes an http.Handler; [Guard.Do] protects any function: a message, a job, a call of another kind.
//
// Each route says how it executes. [Transactional] puts the claim, the handler's writes and the answer into one
// database transaction, which the handler takes with [Tx], or with postgres.Tx for pgx. [Reserved] records the intent
// first and the answer afterwards, for handlers that call other systems, and must be told what a failure means: see
// [Failure]. There is no default, because a wrong one would be silent until the first crash. Package phase runs
// operations of several steps.
//
// A duplicate of an operation in flight is refused by [InFlightConflict], made to wait by [InFlightWait], or sent to a
// status page by [InFlightAccepted] and [Guard.StatusHandler].
//
// A handler reaches its [Operation] with [FromContext]: to derive the key that it sends to the next system, to ask
// whether it still holds the right to execute, and to say how it ended.
//
// What goes on beside the handlers, such as package janitor, reconcile, phase and outbox, is a [Worker]. [Run] runs
// them all, with the server ([Guard.Server]), and stops them in the right order.
//
// Answers of Onceward itself are a [Problem], as RFC 9457 has it. An [Observer] is told of everything that happens.
//
// Package janitor sweeps lost leases and removes what has expired, package reconcile settles outcomes that are unknown,
// and packages outbox and inbox send and apply messages once. [Run] runs their workers and the server under one roof.
//
// # Rules
//
// Comments point at the rules of the specification, docs/spec.md, by their numbers: (E7), (S6).
package onceward
