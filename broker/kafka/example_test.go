package kafka_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
)

// Every message of a route goes to one topic of Kafka. The brokers of this example run in its own process.
func ExamplePublisher() {
	cluster, err := kfake.NewCluster(kfake.SeedTopics(1, "shop.payments"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()

	client, err := kafka.NewPublisherClient(cluster.ListenAddrs())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Client: client,
		Topic:  func(*outbox.Event) (string, error) { return "shop.payments", nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A worker does this with every message of its route: outbox.Publish(publisher) is the route's handler.
	err = publisher.Publish(context.Background(), &outbox.Event{
		ID: "0198c0de-0000-7000-8000-000000000001", Source: "https://shop.example/payments", Type: "payment.created",
		Time: time.Now(), ContentType: "application/json", Data: []byte(`{"amount":5}`), PartitionKey: "payment/17",
	})
	fmt.Println("published:", err)
	// Output:
	// published: <nil>
}

// mailerStore is the database of a consumer, such as of store/sqlite or store/postgres.
var mailerStore inbox.Store

// However often an event is sent, it leads to one mail: the consumer writes it in the transaction that remembers the
// event.
func ExampleConsumer() {
	client, err := kafka.NewConsumerClient([]string{"broker-1:9092"}, "mailer", []string{"charges"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseAllowingRebalance()
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
		Client: client,
		Inbox:  inbox.New(mailerStore),
		Name:   "mailer",
		Handle: func(ctx context.Context, r *kgo.Record) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES (?)`, string(r.Value))
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Println(consumer.Run(context.Background()))
}
