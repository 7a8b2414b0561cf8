package outbox_test

import (
	"context"
	"log"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/outbox"
)

// The store is one of the SQL stores, such as that of package sqlite or postgres. Their packages have examples that
// run.
func openStore() outbox.Store { return nil }

// A handler writes an order and the message about it in one transaction: both are committed, or neither is.
func ExampleOutbox_Add() {
	box, err := outbox.New(openStore(), outbox.Config{Source: "https://shop.example/orders"})
	if err != nil {
		log.Fatal(err)
	}
	_ = func(w http.ResponseWriter, r *http.Request) {
		ctx, tx := r.Context(), onceward.Tx(r.Context())
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, "order-1"); err != nil {
			http.Error(w, "the order could not be written", http.StatusInternalServerError)
			return
		}
		_, err := box.Add(ctx, tx, outbox.Message{
			Topic: "mails", AggregateType: "order", AggregateID: "order-1", Type: "order.placed", Payload: []byte(`{"item":"a book"}`),
		})
		if err != nil {
			http.Error(w, "the message could not be written", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}

// A handler adds the message to its answer: it is written in the round trip that commits the answer, and costs none of
// its own.
func ExampleOutbox_AddToAnswer() {
	box, err := outbox.New(openStore(), outbox.Config{Source: "https://shop.example/orders"})
	if err != nil {
		log.Fatal(err)
	}
	_ = func(w http.ResponseWriter, r *http.Request) { // of a route with onceward.Transactional()
		_, err := box.AddToAnswer(r.Context(), outbox.Message{
			Topic: "mails", AggregateType: "order", AggregateID: "order-1", Type: "order.placed", Payload: []byte(`{"item":"a book"}`),
		})
		if err != nil {
			http.Error(w, "the message could not be added", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}

// A worker delivers the messages of the topics that it has a route for, until its context ends.
func ExampleWorker_Run() {
	mail := func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
		// call the mail service, with d.DownstreamKey as the idempotency key
		return outbox.Result{ProviderID: "mail_1"}, nil
	}
	worker, err := outbox.NewWorker(openStore(), outbox.WorkerConfig{Routes: map[string]outbox.Route{"mails": {Handler: mail}}})
	if err != nil {
		log.Fatal(err)
	}
	worker.Run(context.Background())
}
