package phase_test

import (
	"context"
	"log"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/store"
)

// booking is what is carried from step to step.
type booking struct {
	Guest  string `json:"guest"`
	Seat   int64  `json:"seat"`
	Charge string `json:"charge"`
}

// The services that the example takes as given.
var (
	database store.Store // one with transactions, such as of store/sqlite or store/postgres
	bank     interface {
		// Charge recognises a key that it has seen, and returns the same charge again.
		Charge(ctx context.Context, key, guest string) (id string, err error)
	}
)

// A booking holds a seat, charges the guest, and is confirmed. The steps that work in the database share a transaction
// with their recovery point. A call to the bank whose reply was lost is made again, with the same key. The example in
// package sqlite runs it.
func Example() {
	guard, err := onceward.New(database, onceward.Config{
		Scope: onceward.SingleScope("hall"), Secret: []byte("at least sixteen random bytes"),
	})
	if err != nil {
		log.Fatal(err)
	}
	book := phase.Must(phase.New(phase.Definition[booking]{
		Name: "POST /bookings",
		Steps: []phase.Step[booking]{
			phase.Local("seat", func(ctx context.Context, b *booking) error {
				row := onceward.Tx(ctx).QueryRowContext(ctx, `INSERT INTO seat (guest) VALUES ($1) RETURNING number`, b.Guest)
				return row.Scan(&b.Seat)
			}),
			phase.External("charge", func(ctx context.Context, key string, b *booking) (err error) {
				b.Charge, err = bank.Charge(ctx, key, b.Guest)
				return err
			}).Repeat(),
			phase.Local("confirm", func(ctx context.Context, b *booking) error {
				_, err := onceward.Tx(ctx).ExecContext(ctx, `UPDATE seat SET confirmed = 1 WHERE number = $1`, b.Seat)
				return err
			}),
		},
		Answer: func(b *booking) phase.Answer { return phase.JSON(http.StatusCreated, b) },
	}))
	http.Handle("POST /bookings", book.Handler(guard, func(r *http.Request) (*booking, error) {
		return &booking{Guest: r.FormValue("guest")}, nil
	}))

	// An operation that a node has lost continues without its caller, on any node that runs a resumer.
	resumer, err := phase.NewResumer(guard, database, phase.ResumerConfig{Operations: []phase.Resumable{book}})
	if err != nil {
		log.Fatal(err)
	}
	go resumer.Run(context.Background())
	log.Fatal(http.ListenAndServe(":8080", nil))
}
