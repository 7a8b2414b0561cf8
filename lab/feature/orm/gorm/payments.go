// Package payments is the recipe of docs/orm.md for GORM.
package payments

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"gorm.io/gorm"
)

// Payment is a row.
type Payment struct {
	ID     string
	Amount int64
}

// TableName is the name of the table.
func (Payment) TableName() string { return "payment" }

// Pay makes a payment, with a tip if there can be one.
func Pay(db *gorm.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Amount, Tip int64 }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
			http.Error(w, "not an order", http.StatusBadRequest)
			return
		}
		tx, id := OnTx(r.Context(), db), rand.Text()
		if err := tx.Create(&Payment{id, order.Amount}).Error; err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // everything is undone
			return
		}
		tip := tx.Transaction(func(tx *gorm.DB) error { // a savepoint: an error undoes the tip alone
			return tx.Create(&Payment{id + " tip", order.Tip}).Error
		})
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "tipped": tip == nil})
	}
}
