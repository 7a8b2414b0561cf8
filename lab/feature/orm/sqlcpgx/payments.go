// Package payments is the recipe of docs/orm.md for sqlc with pgx.
package payments

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/feature/orm/sqlcpgx/query"
	"github.com/onceward/onceward/store/postgres"
)

// Pay makes a payment, with a tip if there can be one.
func Pay(w http.ResponseWriter, r *http.Request) {
	var order struct{ Amount, Tip int64 }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
		http.Error(w, "not an order", http.StatusBadRequest)
		return
	}
	ctx, id := r.Context(), rand.Text()
	tx := postgres.Tx(ctx)
	err := query.New(tx).CreatePayment(ctx, query.CreatePaymentParams{ID: id, Amount: order.Amount})
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
		return
	}
	tip := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint: an error undoes the tip alone
		return query.New(tx).CreatePayment(ctx, query.CreatePaymentParams{ID: id + " tip", Amount: order.Tip})
	})
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "tipped": tip == nil})
}
