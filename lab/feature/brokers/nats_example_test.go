package brokers_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store/sqlite"
)

// An event that was sent twice leads to one mail.
func Example_nats() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, stream, remove := exampleParts(ctx, "event-1", "event-1", "event-2")
	defer remove()
	source, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "mailer"})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := nats.NewConsumer(nats.ConsumerConfig{
		Source: source,
		Inbox:  inbox.New(store),
		Name:   "mailer",
		Handle: func(ctx context.Context, m jetstream.Msg) error {
			if string(m.Data()) == "event-2" {
				cancel() // the example has seen enough; this message is still finished
			}
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES (?)`, string(m.Data()))
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ended:", consumer.Run(ctx))

	mails := 0
	if err := store.DB().QueryRow(`SELECT count(*) FROM mails`).Scan(&mails); err != nil {
		log.Fatal(err)
	}
	fmt.Println("mails:", mails)
	// Output:
	// ended: <nil>
	// mails: 2
}

// exampleParts starts a server in this process, with a stream that holds the events, and opens a database.
func exampleParts(ctx context.Context, events ...string) (store *sqlite.Store, stream jetstream.Stream, remove func()) {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	go s.Start()
	if !s.ReadyForConnections(await.Limit) {
		log.Fatal("the server does not start")
	}
	conn, err := natsgo.Connect(s.ClientURL())
	if err != nil {
		log.Fatal(err)
	}
	stream = exampleStream(ctx, conn, events)
	if store, err = sqlite.Open(ctx, filepath.Join(dir, "mailer.db")); err != nil {
		log.Fatal(err)
	}
	err = store.Update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE mails (id INTEGER PRIMARY KEY, about TEXT NOT NULL)`)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return store, stream, func() {
		conn.Close()
		s.Shutdown()
		s.WaitForShutdown()
		_ = store.Close()
		_ = os.RemoveAll(dir)
	}
}

// exampleStream plays the sender.
func exampleStream(ctx context.Context, conn *natsgo.Conn, events []string) jetstream.Stream {
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"charges"}})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range events {
		m := &natsgo.Msg{Subject: "charges", Data: []byte(id), Header: natsgo.Header{"ce-id": {id}}}
		if _, err := js.PublishMsg(ctx, m); err != nil {
			log.Fatal(err)
		}
	}
	return stream
}
