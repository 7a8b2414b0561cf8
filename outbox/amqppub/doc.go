// Package amqppub publishes the events of an outbox to RabbitMQ, over AMQP 0-9-1 with publisher confirms, in the binary mode of
// the AMQP binding of CloudEvents 1.0.
//
//	publisher, err := amqppub.New(amqppub.Config{URL: "amqps://user:password@broker/shop"})
//	…
//	defer publisher.Close()
//	handler := outbox.Publish(publisher)
//
// The body of a message in RabbitMQ is the payload as it is. The attributes of the event are headers that begin with
// "cloudEvents:", but for the content type, which has a property of its own. The ID of the event is also the message-id.
//
// An event counts as published when the broker has confirmed it, and has not returned it: messages are persistent and
// mandatory, so that one that no queue takes is an error, [ErrUnroutable], and not lost in silence. Queues must be durable to
// keep it, and are declared by those who consume from them. An alternate exchange counts as a route.
//
// RabbitMQ does not recognise a message that is published again, as it is when a confirm was lost. A consumer with an inbox
// does, by the ID: package inbox/amqpsub is such a consumer.
package amqppub
