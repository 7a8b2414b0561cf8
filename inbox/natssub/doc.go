// Package natssub consumes from NATS JetStream with an inbox: each event is applied once, in the consumer's own transaction,
// however often it is delivered.
//
//	source, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "mailer"})
//	…
//	err = natssub.Consumer{
//		Source: source,
//		Inbox:  inbox.New(store),
//		Name:   "mailer",
//		Handle: func(ctx context.Context, m jetstream.Msg) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	}.Run(ctx)
//
// A message is acknowledged when its transaction has been committed. A crash in between makes it come again, and the inbox
// recognises it by the ID of its event.
//
// # Failures
//
// A message that cannot be applied is handed back to the server, to come again after a pause that grows. After
// [Consumer.MaxAttempts], or at once if it has no event ID or the handler says so with [ErrPoison], it is given to
// [Consumer.OnPoison], for example to be put aside, and then not delivered again. Without that, the consumer stops with an
// error: nothing is skipped in silence. While the store is not available, failures do not count, since that says nothing about
// the message.
//
// Failures are counted by this process, and forgotten when it ends. A message that kills the process is not counted.
//
// # Order
//
// JetStream delivers messages in the order of the stream, but one that failed comes again behind others. Where the order
// matters, the consumer in JetStream is made with a MaxAckPending of 1: it has one message under way at a time.
package natssub
