// Package payments serves payments under chi: a recipe of docs/routers.md.
package payments

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/onceward/onceward"
)

// Charge asks a bank for money. The bank recognises a repetition by the key.
type Charge func(ctx context.Context, key, account string, amount int64) (id string, err error)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard, charge Charge) http.Handler {
	router := chi.NewRouter()
	router.With(guard.Middleware(onceward.Reserved(onceward.FailureUnknown))).
		Post("/accounts/{account}/payments", func(w http.ResponseWriter, r *http.Request) {
			var order struct{ Amount int64 }
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
				onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
				http.Error(w, "not a payment", http.StatusBadRequest)
				return
			}
			key := onceward.FromContext(r.Context()).DownstreamKey("charge")
			id, err := charge(r.Context(), key, chi.URLParam(r, "account"), order.Amount)
			if err != nil {
				http.Error(w, "the bank did not answer", http.StatusBadGateway)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(map[string]string{"id": id})
		})
	return router
}
