package brokers_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// An event that was sent twice leads to one mail. The broker of this example runs in its own process.
func Example_kafka() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, remove := exampleStore(ctx)
	defer remove()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "charges"))
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	send(ctx, cluster.ListenAddrs(), "event-1", "event-1", "event-2")

	client, err := kafka.NewConsumerClient(cluster.ListenAddrs(), "mailer", []string{"charges"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseAllowingRebalance()
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
		Client: client,
		Inbox:  inbox.New(store),
		Name:   "mailer",
		Handle: func(ctx context.Context, r *kgo.Record) error {
			if string(r.Value) == "event-2" {
				cancel() // the example has seen enough; this record is still finished
			}
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO mails (about) VALUES (?)`, string(r.Value))
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

// exampleStore opens a database with the table of the mails.
func exampleStore(ctx context.Context) (store *sqlite.Store, remove func()) {
	dir, err := os.MkdirTemp("", "kafka")
	if err != nil {
		log.Fatal(err)
	}
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
	return store, func() {
		_ = store.Close()
		_ = os.RemoveAll(dir)
	}
}

// send plays the sender.
func send(ctx context.Context, seeds []string, ids ...string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, id := range ids {
		headers := []kgo.RecordHeader{{Key: "ce_id", Value: []byte(id)}}
		record := &kgo.Record{Topic: "charges", Value: []byte(id), Headers: headers}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
}
