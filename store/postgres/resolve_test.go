package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/store"
)

// TestRefusedBesideAnAnswer is about the moment between a refused commit and the look at the record: who has stored an answer by
// then has executed, and a client must not be told that its request was refused.
func TestRefusedBesideAnAnswer(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23514", TableName: "payment"}
	tx := &transaction{store: new(Store)}
	wanted := &store.Record{State: store.StateCompleted, Fingerprint: store.Fingerprint{Secret: 1}}
	if _, err := tx.learned(store.Verdict{}, wanted, new(store.Record), cause); !errors.Is(err, store.ErrWorkRefused) {
		t.Errorf("nothing is stored: %v, want ErrWorkRefused", err)
	}
	others := &store.Record{State: store.StateCompleted, Attempt: 7}
	if _, err := tx.learned(store.Verdict{}, wanted, others, cause); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("another one has stored its answer: %v, want ErrUnavailable, so that a retry gets it", err)
	}
}
