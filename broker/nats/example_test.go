package nats_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/outbox"
)

// Events become messages of a stream, with subjects made of their types.
func ExamplePublisher() {
	conn, stop, err := exampleConnection()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	js, err := jetstream.New(conn)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		fmt.Println(err)
		return
	}
	publisher, err := nats.NewPublisher(nats.PublisherConfig{
		JetStream: js,
		Subject:   func(e *outbox.Event) (string, error) { return "shop." + e.Type, nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A worker does this with every message of its route: outbox.Publish(publisher) is the route's handler.
	err = publisher.Publish(ctx, &outbox.Event{
		ID: "0198c0de-0000-7000-8000-000000000001", Source: "https://shop.example/payments", Type: "payment.created",
		Time: time.Now(), ContentType: "application/json", Data: []byte(`{"amount":5}`), PartitionKey: "payment/17",
	})
	fmt.Println("published:", err)
	// Output:
	// published: <nil>
}

// exampleConnection connects to a server in this process.
func exampleConnection() (conn *natsgo.Conn, stop func(), err error) {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(await.Limit) {
		return nil, nil, fmt.Errorf("the server does not start")
	}
	if conn, err = natsgo.Connect(s.ClientURL()); err != nil {
		return nil, nil, err
	}
	return conn, func() {
		conn.Close()
		stopServer(s)
		_ = os.RemoveAll(dir)
	}, nil
}

// mailerStore is the database of a consumer, such as of store/sqlite or store/postgres, and charges the stream that it
// reads.
var (
	mailerStore inbox.Store
	charges     jetstream.Stream
)

// However often an event is sent, it leads to one mail: the consumer writes it in the transaction that remembers the
// event.
func ExampleConsumer() {
	ctx := context.Background()
	source, err := charges.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "mailer"})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := nats.NewConsumer(nats.ConsumerConfig{
		Source: source,
		Inbox:  inbox.New(mailerStore),
		Name:   "mailer",
		Handle: func(ctx context.Context, m jetstream.Msg) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES (?)`, string(m.Data()))
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Println(consumer.Run(ctx))
}
