package node

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/storeurl"
)

// entries is the plainest transactional route: it appends a row, and nothing about the row tells a repetition. The
// payments of the reference system have a natural key as well, which would hide a second execution.
const entries = "POST /entries"

// Entry is both what is asked for and the answer.
type Entry struct {
	ID        string `json:"id,omitempty"`
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference"`
}

// appender appends entries to the table of a database.
type appender struct{ db *storeurl.Database }

func (a appender) appendEntry(w http.ResponseWriter, r *http.Request) {
	var e Entry
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.ID, e.Account = rand.Text(), onceward.FromContext(r.Context()).Scope()
	_, err := onceward.Tx(r.Context()).ExecContext(r.Context(),
		a.db.Bind(`INSERT INTO entry (id, reference) VALUES ($1, $2)`), e.ID, e.Reference)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e) // it is kept in memory until the commit
}
