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
// Events are sent in the binary mode of the AMQP binding of CloudEvents 1.0. The body of a message is the unchanged
// payload. The attributes of the event are headers that begin with "cloudEvents:", except the content type, which is
// the content-type property. The ID of the event is also the message-id.
//
// An event counts as published when the broker has confirmed it and has not returned it. Messages are persistent and
// mandatory, so a message that no queue takes causes an error, [ErrUnroutable], instead of being dropped silently.
// Queues must be durable to keep the messages. Consumers or operators declare the queues. An alternate exchange counts
// as a route.
//
// RabbitMQ does not recognise a message that is published twice, for example after a lost confirm. A consumer with an
// inbox recognises it by its ID.
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
// acknowledged after the commit. After a crash between the two, the broker delivers the message again, and the inbox
// recognises it by the ID of its event. The consumer reconnects after a lost connection. It does not declare the queue:
// the operator chooses whether the queue is durable, quorum or classic. If the queue is missing, the consumer retries
// until it exists.
//
// Deliveries are processed concurrently, up to [ConsumerConfig.Prefetch] at a time. If their order matters, set
// Prefetch to 1 and let no other consumer read the queue at the same time (x-single-active-consumer).
//
// If an event cannot be applied, its delivery waits for a growing backoff and then returns to the queue, while the
// consumer continues with other deliveries. The event is poison after [ConsumerConfig.MaxAttempts] failures, or at once
// if it has no event ID or the handler returns [ErrPoison]. Poison is passed to [ConsumerConfig.OnPoison]. Without
// OnPoison the delivery is rejected: the broker sends it to the dead-letter exchange of the queue, or drops it if there
// is none, so configure one (x-dead-letter-exchange). Failures while the store is unavailable do not count, because
// they are not the event's fault.
//
// Failures are counted in this process, so an event that kills the process is not counted. A quorum queue counts
// deliveries itself and has its own limit (x-delivery-limit).
package amqp
