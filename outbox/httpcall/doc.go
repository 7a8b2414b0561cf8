// Package httpcall makes requests durable: an operation of a caller that is finished after a crash of the caller too.
// A request becomes a message of the outbox in the caller's own transaction. A worker of the outbox sends it after the
// commit, under one idempotency key, until it is answered, keeps the answer with the message and reports it.
//
//	calls, err := httpcall.New(httpcall.Config{Outbox: box, Topic: "supplier", OnSettled: settle})
//	…
//	id, err := calls.Enqueue(ctx, tx, request)
//	…
//	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
//		Routes: map[string]outbox.Route{"supplier": calls.Route()},
//	})
//
// What is sent again, and until when, is decided by the rules of package client. An operation whose outcome cannot be
// found out within the window of its key becomes a dead letter: it is reported, shown to operators, and never sent again.
package httpcall
