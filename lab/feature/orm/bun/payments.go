// Package payments is the recipe of docs/orm.md for bun.
package payments

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/uptrace/bun"
)

// Payment is a row.
type Payment struct {
	bun.BaseModel `bun:"table:payment"`
	ID            string `bun:",pk"`
	Amount        int64
}

// Pay makes a payment, with a tip if there can be one.
func Pay(db *bun.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Amount, Tip int64 }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
			http.Error(w, "not an order", http.StatusBadRequest)
			return
		}
		ctx, id := r.Context(), rand.Text()
		if _, err := db.NewInsert().Model(&Payment{ID: id, Amount: order.Amount}).Exec(ctx); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
			return
		}
		tip := Savepoint(ctx, func() error { // an error undoes the tip alone
			_, err := db.NewInsert().Model(&Payment{ID: id + " tip", Amount: order.Tip}).Exec(ctx)
			return err
		})
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "tipped": tip == nil})
	}
}
