// Package shop has three handlers of a user's, to show in docs/testing.md how they are tested.
package shop

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

// Pay makes a payment in the transaction of the handler, which is a *sql.Tx: on SQLite and on PostgreSQL.
func Pay(w http.ResponseWriter, r *http.Request) {
	pay(w, r, func(ctx context.Context, amount int64) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO payment (amount) VALUES ($1)`, amount)
		return err
	})
}

// PayWithPgx is Pay for PostgreSQL and pgx.
func PayWithPgx(w http.ResponseWriter, r *http.Request) {
	pay(w, r, func(ctx context.Context, amount int64) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `INSERT INTO payment (amount) VALUES ($1)`, amount)
		return err
	})
}

func pay(w http.ResponseWriter, r *http.Request, insert func(ctx context.Context, amount int64) error) {
	var payment struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&payment); err != nil || payment.Amount <= 0 {
		onceward.FromContext(r.Context()).Reject() // nothing is kept: the corrected request may use the same key
		http.Error(w, "an amount above zero, please", http.StatusUnprocessableEntity)
		return
	}
	if err := insert(r.Context(), payment.Amount); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// Refunds asks a provider for refunds, which takes the same key for the same refund.
type Refunds struct {
	Ask func(ctx context.Context, key string) error
}

// ServeHTTP makes one refund.
func (f Refunds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := onceward.FromContext(r.Context())
	if err := f.Ask(r.Context(), op.DownstreamKey("refund")); err != nil {
		op.Unknown() // the provider may have made it
		http.Error(w, "not known yet", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}
