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
// Events are in the binary mode of the NATS binding of CloudEvents 1.0. The data of a message in NATS is the payload as
// it is, and the attributes of the event are in headers that begin with "ce-", percent-encoded as the binding asks for.
// An event counts as published when a stream has acknowledged it. There has to be a stream that takes the subject: as
// long as there is none, events are tried again, and none is lost.
//
// The ID of the event is also the message ID, Nats-Msg-Id. The server drops a repetition by it within the stream's
// duplicate window, which is two minutes unless the stream says otherwise. A later repetition gets through, and a
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
// acknowledged when its transaction has been committed. A crash in between makes it come again, and the inbox
// recognises it by the ID of its event.
//
// A message that cannot be applied is handed back to the server, to come again after a growing backoff. After
// [ConsumerConfig.MaxAttempts], or at once if it has no event ID or the handler says so with [ErrPoison], it is given
// to [ConsumerConfig.OnPoison], for example to be put aside, and then not delivered again. Without that, the consumer
// stops with an error: nothing is skipped in silence. While the store is not available, failures do not count, since
// that says nothing about the message. Failures are counted by this process, and forgotten when it ends. A message that
// kills the process is not counted.
//
// JetStream delivers messages in the order of the stream, but one that failed comes again behind others. Where the
// order matters, the consumer in JetStream is made with a MaxAckPending of 1: it has one message under way at a time.
package nats
