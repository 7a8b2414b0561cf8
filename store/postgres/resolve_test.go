package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward"
)

// TestRefusedBesideAnAnswer is about the moment between a refused commit and the look at the record: who has stored an answer by
// then has executed, and a client must not be told that its request was refused.
func TestRefusedBesideAnAnswer(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23514", TableName: "payment"}
	tx := &transaction{store: new(Store)}
	wanted := &onceward.Record{State: onceward.StateCompleted, Fingerprint: onceward.Fingerprint{Secret: 1}}
	if _, err := tx.learned(onceward.Verdict{}, wanted, new(onceward.Record), cause); !errors.Is(err, onceward.ErrWorkRefused) {
		t.Errorf("nothing is stored: %v, want ErrWorkRefused", err)
	}
	others := &onceward.Record{State: onceward.StateCompleted, Attempt: 7}
	if _, err := tx.learned(onceward.Verdict{}, wanted, others, cause); !errors.Is(err, onceward.ErrUnavailable) {
		t.Errorf("another one has stored its answer: %v, want ErrUnavailable, so that a retry gets it", err)
	}
}
