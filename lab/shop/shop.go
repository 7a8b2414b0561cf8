// Package shop is a service of a user's, to show in docs/testing.md how it is tested.
package shop

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
)

// New builds the service: in the program over the guard of its database, in tests over that of a test. It asks a
// provider for refunds, which takes the same key for the same refund.
func New(guard *onceward.Guard, ask func(ctx context.Context, key string) error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.HandlerFunc(Pay, onceward.Transactional()))
	mux.Handle("POST /refunds", guard.Handler(refunds{ask}, onceward.Reserved(onceward.FailureUnknown)))
	return mux
}

// Pay makes a payment in the transaction of the handler.
func Pay(w http.ResponseWriter, r *http.Request) {
	var payment struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&payment); err != nil || payment.Amount <= 0 {
		onceward.FromContext(r.Context()).Reject() // nothing is kept: the corrected request may use the same key
		http.Error(w, "an amount above zero, please", http.StatusUnprocessableEntity)
		return
	}
	tx := onceward.Tx(r.Context())
	if _, err := tx.ExecContext(r.Context(), `INSERT INTO payment (amount) VALUES ($1)`, payment.Amount); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
		return
	}
	w.WriteHeader(http.StatusCreated)
}

type refunds struct {
	ask func(ctx context.Context, key string) error
}

// ServeHTTP makes one refund.
func (f refunds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := onceward.FromContext(r.Context())
	if err := f.ask(r.Context(), op.DownstreamKey("refund")); err != nil {
		op.Unknown() // the provider may have made it
		http.Error(w, "not known yet", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}
