package natspub_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/natspub"
)

// Events become messages of a stream, with subjects made of their types.
func Example() {
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
	publisher, err := natspub.New(js, natspub.Config{
		Subject: func(e *outbox.Event) (string, error) { return "shop." + e.Type, nil },
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
func exampleConnection() (conn *nats.Conn, stop func(), err error) {
	dir, err := os.MkdirTemp("", "natspub")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(patience) {
		return nil, nil, fmt.Errorf("the server does not start")
	}
	if conn, err = nats.Connect(s.ClientURL()); err != nil {
		return nil, nil, err
	}
	return conn, func() {
		conn.Close()
		stopServer(s)
		_ = os.RemoveAll(dir)
	}, nil
}
