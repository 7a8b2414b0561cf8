package node

import (
	"crypto/rand"
	"encoding/json"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"github.com/onceward/onceward"
)

// These routes keep their answers for as short as the guard allows. The store's clock leaps past that now and then,
// so that the same key is reaped and executes again within a run.
const (
	// flashes is transactional, and appends a row.
	flashes = "POST /flashes"
	// sparks is reserved, and does nothing but answer, at times slowly.
	sparks = "POST /sparks"
)

// spark answers with an id of its own.
func spark(w http.ResponseWriter, r *http.Request) {
	var e Entry
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if mathrand.IntN(4) == 0 {
		time.Sleep(Timing.Lease / 4) // long enough for a sweeper that is too eager
	}
	e.ID, e.Account = rand.Text(), onceward.FromContext(r.Context()).Scope()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e) // it is kept in memory until it is stored
}
