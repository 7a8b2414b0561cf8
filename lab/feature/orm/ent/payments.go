// Package payments is the recipe of docs/orm.md for ent.
package payments

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/feature/orm/ent/ent"
)

// Pay makes a payment, with a tip if there can be one. The dialect is the store's: dialect.Postgres, MySQL or SQLite.
func Pay(dialect string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Amount, Tip int64 }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
			http.Error(w, "not an order", http.StatusBadRequest)
			return
		}
		ctx, id := r.Context(), rand.Text()
		client := ent.NewClient(ent.Driver(OnTx(ctx, dialect)))
		if err := client.Payment.Create().SetID(id).SetAmount(order.Amount).Exec(ctx); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
			return
		}
		tip := tip(ctx, client, id, order.Tip)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "tipped": tip == nil})
	}
}

func tip(ctx context.Context, client *ent.Client, id string, amount int64) error {
	tx, err := client.Tx(ctx) // a savepoint: a rollback undoes the tip alone
	if err != nil {
		return err
	}
	if err := tx.Payment.Create().SetID(id + " tip").SetAmount(amount).Exec(ctx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}
