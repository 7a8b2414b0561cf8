// Package outbox delivers what leaves the database: events for brokers and calls of other systems.
//
// A message is added in the business transaction, so it is there if and only if that was committed. Workers, on any number
// of nodes, deliver it afterwards: at least once, always under the same ID and the same downstream key, so that whoever
// receives it can tell a repetition. Package inbox does that for consumers of one's own.
//
//	box, err := outbox.New(store, outbox.Config{Source: "https://shop.example/payments"})
//	…
//	id, err := box.Add(ctx, tx, outbox.Message{Topic: "charges", AggregateID: payment.ID, Type: "payment.created", Payload: body})
//
// A worker has a route for each topic that it delivers: a [Handler] that calls another system, or [Publish] with one of the
// publishers in the packages below. Messages about one aggregate keep the order in which they were committed; other
// aggregates overtake.
package outbox
