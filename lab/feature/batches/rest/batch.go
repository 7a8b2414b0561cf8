// Package payments is the recipe of docs/batches.md for a batch of a REST API.
package payments

import (
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
)

// Batch makes the payments of one request, each an operation of its own.
type Batch struct {
	*onceward.Procedure // transactional: each item has a transaction of its own
	Scope               onceward.ScopeFunc
}

const maxItems = 100

// ServeHTTP answers what came of each item, in their order.
func (b Batch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, err := b.Scope(r)
	if err != nil {
		b.Refuse(r.Context(), "pay", err).Write(w)
		return
	}
	var items []item
	err = json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&items)
	if err != nil || len(items) == 0 || len(items) > maxItems {
		http.Error(w, "1 to 100 payments, please; nothing was executed", http.StatusBadRequest)
		return
	}
	answers := make([]answer, len(items))
	for i, item := range items {
		answers[i] = b.serve(r, scope, item)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answers)
}

func (b Batch) serve(r *http.Request, scope string, item item) answer {
	call := onceward.Call{Scope: scope, Operation: "pay", Header: r.Header.Clone()}
	call.Header.Del("Idempotency-Key") // a key of the batch is none of its items
	if item.Key != "" {
		call.Header.Set("Idempotency-Key", item.Key) // checked by the guard's rules for keys
	}
	call.Payload, _ = json.Marshal(item.payment) // of text and numbers
	return toAnswer(b.Serve(r.Context(), call, item.pay))
}
