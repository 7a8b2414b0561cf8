// Package amqpsub consumes from RabbitMQ with an inbox: each event is applied once, in the consumer's own transaction, however
// often it is delivered.
//
//	err := amqpsub.Consumer{
//		URL:   "amqps://user:password@broker/shop",
//		Queue: "mails",
//		Inbox: inbox.New(store),
//		Name:  "mailer",
//		Handle: func(ctx context.Context, d *amqp.Delivery) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	}.Run(ctx)
//
// A delivery is acknowledged after the commit. A crash in between makes it come again, and the inbox recognises it by the ID of
// its event. A connection that is lost is made again. The queue is not declared here: durable or not, quorum or classic, is for
// the operator to say. As long as it is missing, the consumer tries again.
//
// Deliveries are worked on at the same time, as many as [Consumer.Prefetch] says. If their order matters, that is one, and no
// other consumer reads the queue at the same time (x-single-active-consumer).
//
// # Failures
//
// If an event cannot be applied, its delivery is kept back for a while, with growing pauses, and then put back into the queue,
// while others go on. After [Consumer.MaxAttempts] failures, or at once if it has no event ID or the handler says so with
// [ErrPoison], it is given to [Consumer.OnPoison]. Without that it is rejected: the broker passes it on to the dead-letter
// exchange of the queue, and drops it if there is none, so configure one (x-dead-letter-exchange). While the store is not
// available, tries do not count, since that says nothing about the event.
//
// Tries are counted by this process. An event that kills the process is not counted by it; a quorum queue counts deliveries
// itself and has a limit of its own (x-delivery-limit).
package amqpsub
