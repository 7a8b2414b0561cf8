package amqp_test

import (
	"context"
	"log"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
)

// Every message of a route goes to one exchange, with the type of the event as its routing key.
func ExamplePublisher() {
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{
		URL:        "amqps://user:password@broker/shop",
		Exchange:   amqp.Always("payments"),
		RoutingKey: func(e *outbox.Event) (string, error) { return e.Type, nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	route := outbox.Route{Handler: outbox.Publish(publisher)}
	_ = route // of a worker, by the topic of its messages
}

// mailerStore is the database of a consumer, such as of store/sqlite or store/postgres.
var mailerStore inbox.Store

// However often an event is sent, it leads to one mail: the consumer writes it in the transaction that remembers the
// event.
func ExampleConsumer() {
	consumer, err := amqp.NewConsumer(amqp.ConsumerConfig{
		URL:   "amqps://user:password@broker/shop",
		Queue: "mails",
		Inbox: inbox.New(mailerStore),
		Name:  "mailer",
		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES (?)`, string(d.Body))
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Println(consumer.Run(context.Background()))
}
