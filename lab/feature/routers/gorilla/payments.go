// Package payments serves payments under gorilla/mux: a recipe of docs/routers.md.
package payments

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/gorilla/mux"
	"github.com/onceward/onceward"
)

// NewRouter serves payments.
func NewRouter(guard *onceward.Guard) (http.Handler, error) {
	router := mux.NewRouter()
	accounts := router.PathPrefix("/accounts/{account}").Subrouter()
	Protect(accounts, http.MethodPost, "/payments", createPayment, guard, onceward.Transactional())
	return router, Audit(router)
}

func createPayment(w http.ResponseWriter, r *http.Request) {
	var order struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		onceward.FromContext(r.Context()).Reject() // the corrected request may use the same key
		http.Error(w, "not a payment", http.StatusBadRequest)
		return
	}
	id, tx := rand.Text(), onceward.Tx(r.Context())
	if _, err := tx.ExecContext(r.Context(), `INSERT INTO payment (id, account, amount) VALUES ($1, $2, $3)`,
		id, mux.Vars(r)["account"], order.Amount); err != nil {
		http.Error(w, "not written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"id": id})
}
