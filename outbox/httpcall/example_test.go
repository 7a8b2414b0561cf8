package httpcall_test

import (
	"context"
	"database/sql"
	"net/http"
	"os"
	"strings"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httpcall"
)

// A payment is sent if and only if the order is committed, and the order gets the answer whatever crashes.
func Example() {
	var store outbox.Store // such as postgres.Open returns
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		return // there is none in this example
	}
	calls, err := httpcall.New(httpcall.Config{
		Outbox: box, Topic: "supplier",
		Prepare: func(request *http.Request) error {
			request.Header.Set("Authorization", "Bearer "+os.Getenv("SUPPLIER_TOKEN"))
			return nil
		},
		OnSettled: func(ctx context.Context, o httpcall.Operation) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `UPDATE orders SET outcome = $1, status = $2 WHERE payment = $3`,
				o.Outcome.String(), o.Answer.Status, o.ID)
			return err
		},
	})
	if err != nil {
		panic(err)
	}
	order := func(ctx context.Context, tx *sql.Tx) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://supplier.example/payments",
			strings.NewReader(`{"amount":1999}`))
		if err != nil {
			return err
		}
		id, err := calls.Enqueue(ctx, tx, request)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO orders (payment) VALUES ($1)`, id)
		return err
	}
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
		Routes: map[string]outbox.Route{"supplier": calls.Route()},
	})
	if err != nil {
		panic(err)
	}
	_, _ = order, worker.Run
}
