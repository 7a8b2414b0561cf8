// Package payments is the recipe of docs/orm.md for sqlc with database/sql.
package payments

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/feature/orm/sqlc/query"
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
	tx := onceward.Tx(ctx)
	queries := query.New(tx)
	if err := queries.CreatePayment(ctx, query.CreatePaymentParams{ID: id, Amount: order.Amount}); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
		return
	}
	if _, err := tx.ExecContext(ctx, `SAVEPOINT tip`); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError)
		return
	}
	tip := queries.CreatePayment(ctx, query.CreatePaymentParams{ID: id + " tip", Amount: order.Tip})
	if tip != nil { // undo the tip alone
		if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT tip`); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "tipped": tip == nil})
}
