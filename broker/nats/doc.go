// Package nats connects Onceward with NATS JetStream: [Publisher] publishes the events of an outbox, and [Consumer]
// applies events with an inbox.
//
// # Publishing
//
//	js, err := jetstream.New(conn)
//	…
//	publisher, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js})
//	…
//	handler := outbox.Publish(publisher)
//
// Events are sent in the binary mode of the NATS binding of CloudEvents 1.0. The data of a message is the unchanged
// payload. The attributes of the event are in headers that begin with "ce-", percent-encoded as the binding requires.
// An event counts as published when a stream has acknowledged it. A stream must take the subject: until there is one,
// events are retried, and no event is lost.
//
// The ID of the event is also the message ID, Nats-Msg-Id. The server drops repetitions of an ID within the stream's
// duplicate window, which is two minutes unless the stream is configured otherwise. A later repetition is stored, and a
// consumer with an inbox recognises it by the same ID.
//
// # Consuming
//
//	source, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "mailer"})
//	…
//	consumer, err := nats.NewConsumer(nats.ConsumerConfig{
//		Source: source,
//		Inbox:  inbox.New(store),
//		Name:   "mailer",
//		Handle: func(ctx context.Context, m jetstream.Msg) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	})
//	…
//	err = consumer.Run(ctx)
//
// Each event is applied once, in the consumer's own transaction, however often it is delivered. A message is
// acknowledged after its transaction has been committed. After a crash between the two, the server delivers the message
// again, and the inbox recognises it by the ID of its event.
//
// A message that cannot be applied is returned to the server, which delivers it again after a growing backoff. The
// message is poison after [ConsumerConfig.MaxAttempts] failures, or at once if it has no event ID or the handler
// returns [ErrPoison]. Poison is passed to [ConsumerConfig.OnPoison], for example to store it, and is not delivered
// again. Without OnPoison, the consumer stops with an error: no message is skipped silently. Failures while the store
// is unavailable do not count, because they are not the message's fault. Failures are counted in this process, and the
// counts are lost when it ends. A message that kills the process is not counted.
//
// JetStream delivers messages in the order of the stream, but a failed message is delivered again after later messages.
// If the order matters, create the JetStream consumer with a MaxAckPending of 1: then only one message is in progress
// at a time.
package nats
