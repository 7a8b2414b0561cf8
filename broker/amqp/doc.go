// Package amqp connects Onceward with RabbitMQ, over AMQP 0-9-1: [Publisher] publishes the events of an outbox, and
// [Consumer] applies events with an inbox.
//
// # Publishing
//
//	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{URL: "amqps://user:password@broker/shop"})
//	…
//	defer publisher.Close()
//	handler := outbox.Publish(publisher)
//
// Events are in the binary mode of the AMQP binding of CloudEvents 1.0. The body of a message in RabbitMQ is the
// payload as it is. The attributes of the event are headers that begin with "cloudEvents:", but for the content type,
// which has a property of its own. The ID of the event is also the message-id.
//
// An event counts as published when the broker has confirmed it, and has not returned it: messages are persistent and
// mandatory, so that one that no queue takes is an error, [ErrUnroutable], and not lost in silence. Queues must be
// durable to keep it, and are declared by those who consume from them. An alternate exchange counts as a route.
//
// RabbitMQ does not recognise a message that is published again, as it is when a confirm was lost. A consumer with an
// inbox does, by the ID.
//
// # Consuming
//
//	consumer, err := amqp.NewConsumer(amqp.ConsumerConfig{
//		URL:   "amqps://user:password@broker/shop",
//		Queue: "mails",
//		Inbox: inbox.New(store),
//		Name:  "mailer",
//		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
//			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails …`)
//			return err
//		},
//	})
//	…
//	err = consumer.Run(ctx)
//
// Each event is applied once, in the consumer's own transaction, however often it is delivered. A delivery is
// acknowledged after the commit. A crash in between makes it come again, and the inbox recognises it by the ID of its
// event. A connection that is lost is made again. The queue is not declared here: durable or not, quorum or classic, is
// for the operator to say. As long as it is missing, the consumer tries again.
//
// Deliveries are worked on at the same time, as many as [ConsumerConfig.Prefetch] says. If their order matters, that is
// one, and no other consumer reads the queue at the same time (x-single-active-consumer).
//
// If an event cannot be applied, its delivery is kept back for a while, with a growing backoff, and then put back into
// the queue, while others go on. After [ConsumerConfig.MaxAttempts] failures, or at once if it has no event ID or the
// handler says so with [ErrPoison], it is given to [ConsumerConfig.OnPoison]. Without that it is rejected: the broker
// passes it on to the dead-letter exchange of the queue, and drops it if there is none, so configure one
// (x-dead-letter-exchange). While the store is not available, failures do not count, since that says nothing about the
// event.
//
// Failures are counted by this process. An event that kills the process is not counted by it; a quorum queue counts
// deliveries itself and has a limit of its own (x-delivery-limit).
package amqp
