package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// An order and the message about it are committed together, and what is rolled back is never sent.
func Example_outbox() {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()
	box, err := outbox.New(store, outbox.Config{Source: "https://shop.example/orders"})
	if err != nil {
		fmt.Println(err)
		return
	}

	order := func(id string, end error) {
		err := store.InTx(ctx, func(ctx context.Context) error {
			tx := onceward.Tx(ctx) // the order is written with it too
			_, err := box.Add(ctx, tx, outbox.Message{
				Topic: "mails", AggregateType: "order", AggregateID: id, Type: "order.placed", Payload: []byte(`{"item":"a book"}`),
			})
			return errors.Join(err, end)
		})
		fmt.Println("order", id, err)
	}
	order("1", nil)
	order("2", errors.New("the card was declined"))

	mail := func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
		fmt.Println("deliver", d.Type, d.AggregateID, string(d.Payload)) // with d.DownstreamKey
		return outbox.Result{ProviderID: "mail_1"}, nil
	}
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{Routes: map[string]outbox.Route{"mails": {Handler: mail}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := worker.RunOnce(ctx) // a service gives the worker to onceward.Run
	fmt.Println("delivered:", report.Delivered, err)
	// Output:
	// order 1 <nil>
	// order 2 the card was declined
	// deliver order.placed 1 {"item":"a book"}
	// delivered: 1 <nil>
}
