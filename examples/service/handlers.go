package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// ordersTopic is the topic of the events about orders.
const ordersTopic = "orders"

type order struct {
	ID        string `json:"id"`
	Reference string `json:"reference"`
	Quantity  int    `json:"quantity"`
}

// createOrder uses only the database: the order, its event and the answer are one transaction with
// the claim of the key. It calls no other system, because effects there could not be rolled back.
func (s *service) createOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Reference == "" || o.Quantity < 1 {
		reject(w, r, `the body must be JSON such as {"reference":"r1","quantity":2}`)
		return
	}
	o.ID = rand.Text()
	if err := s.insertOrder(r.Context(), o); err != nil {
		slog.ErrorContext(r.Context(), "an order was not written", "error", err)
		http.Error(w, "try again", http.StatusInternalServerError) // all is rolled back, and the retry executes
		return
	}
	send(w, response(http.StatusCreated, o))
}

func (s *service) insertOrder(ctx context.Context, o order) error {
	tx := onceward.Tx(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO app.orders (id, tenant, reference, quantity) VALUES ($1, $2, $3, $4)`,
		o.ID, onceward.FromContext(ctx).Scope(), o.Reference, o.Quantity)
	if err != nil {
		return err
	}
	event, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = s.box.Add(ctx, tx, outbox.Message{
		Topic: ordersTopic, AggregateType: "order", AggregateID: o.ID, Type: "order.created", Payload: event,
	})
	return err
}

const (
	// paymentsRoute is also the name of the operation, by which the poller finds its rule.
	paymentsRoute = "POST /payments"
	// chargeStep is the name of the only call to the provider, for its downstream key.
	chargeStep = "charge"
)

type payment struct {
	ID        string `json:"id"`
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	Status    string `json:"status"`
}

// createPayment calls the provider while the client waits. The reservation is durable before the call.
// Whatever happens afterwards ends with an answer or with an unknown outcome, which resolvePayment settles.
func (s *service) createPayment(w http.ResponseWriter, r *http.Request) {
	var asked payment
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Reference == "" || asked.Amount < 1 {
		reject(w, r, `the body must be JSON such as {"reference":"r1","amount":1999}`)
		return
	}
	op := onceward.FromContext(r.Context())
	if err := op.CheckLease(); err != nil { // the process was paused, and another attempt may be running
		op.NotExecuted()
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	made, err := s.provider.Charge(r.Context(), op.DownstreamKey(chargeStep),
		provider.ChargeRequest{Amount: asked.Amount, Currency: "EUR", Reference: asked.Reference})
	var declined *provider.DeclinedError
	if errors.As(err, &declined) { // this is an answer too, and is stored
		made, err = declined.Charge, nil
	}
	var refused *provider.RefusedError
	switch {
	case errors.As(err, &refused):
		op.NotExecuted() // the provider is certain that nothing was done: the retry executes
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case err != nil:
		op.SetReason(err.Error())
		op.Unknown()
	default:
		op.SetProviderID(made.ID)
		send(w, paymentAnswer(made))
	}
}

// paymentAnswer returns the answer about a charge, for both the handler and the resolver.
func paymentAnswer(c provider.Charge) store.Response {
	status := http.StatusCreated
	if c.Status == provider.Declined {
		status = http.StatusPaymentRequired
	}
	return response(status, payment{ID: c.ID, Reference: c.Reference, Amount: c.Amount, Status: string(c.Status)})
}

// resolvePayment looks up a payment with an unknown outcome at the provider, by the key that was sent with it.
func (s *service) resolvePayment(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
	key, err := s.guard.DownstreamKey(rec, chargeStep)
	if err != nil {
		return reconcile.Answer{}, err
	}
	made, found, err := s.provider.Find(ctx, key)
	switch {
	case err != nil:
		return reconcile.Answer{}, err
	case !found:
		return reconcile.NotFound(), nil
	}
	return reconcile.Completed(paymentAnswer(made), made.ID), nil
}

// reject answers a request that is not valid. The answer is not stored: the corrected request may use the same key.
func reject(w http.ResponseWriter, r *http.Request, problem string) {
	onceward.FromContext(r.Context()).Reject()
	http.Error(w, problem, http.StatusBadRequest)
}

// response returns the response for a client and for every retry.
func response(status int, value any) store.Response {
	body, err := json.Marshal(value)
	if err != nil {
		panic(err) // our types always encode
	}
	return reconcile.Response(status, http.Header{"Content-Type": {"application/json"}}, body)
}

// send writes a response. The guard stores it; whether the client is still connected does not matter.
func send(w http.ResponseWriter, r store.Response) {
	for _, field := range r.Header {
		w.Header().Add(field.Name, field.Value)
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body)
}
