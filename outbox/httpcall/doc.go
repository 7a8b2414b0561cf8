// Package httpcall makes requests durable: an operation is finished even if its caller crashes. A request becomes
// a message of the outbox in the caller's own transaction. After the commit a worker of the outbox sends it,
// under one idempotency key, until it is answered. The worker stores the answer with the message and reports it.
//
//	calls, err := httpcall.New(httpcall.Config{Outbox: box, Topic: "supplier", OnSettled: settle})
//	…
//	id, err := calls.Enqueue(ctx, tx, request)
//	…
//	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
//		Routes: map[string]outbox.Route{"supplier": calls.Route()},
//	})
//
// The rules of package client decide what is retried, and for how long. An operation whose outcome cannot be found
// out within the window of its key becomes a dead letter: it is reported, shown to operators, and never sent again.
package httpcall
