package kafkapub_test

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/kafkapub"
)

// Every message of a route goes to one topic of Kafka. The brokers of this example run in its own process.
func Example() {
	cluster, err := kfake.NewCluster(kfake.SeedTopics(1, "shop.payments"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()

	client, err := kafkapub.Open(cluster.ListenAddrs())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	publisher, err := kafkapub.New(client, kafkapub.Config{
		Topic: func(*outbox.Event) (string, error) { return "shop.payments", nil },
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
