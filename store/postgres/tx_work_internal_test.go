package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestStepWhoseCommitIsARollback: a server that answers COMMIT with ROLLBACK has committed nothing, also where the
// record does not tell, as with sealed data that is there before and after. A reply that is lost says nothing.
func TestStepWhoseCommitIsARollback(t *testing.T) {
	t.Parallel()
	sealed := []byte(store.SealedPrefix + "1")
	rec := store.Record{
		Version: store.RecordVersion, State: store.StateInProgress, Attempt: 7, Point: "charged", Data: sealed,
	}
	for name, c := range map[string]struct {
		cause   error
		unknown bool
	}{
		"rolled back": {errRolledBack, false}, "lost": {io.ErrUnexpectedEOF, true},
	} {
		x := &stepPlan{
			transaction: transaction{store: &Store{}, view: view{before: rec}}, attempt: 7, wanted: rec,
			point: store.Checkpoint{Data: sealed},
		}
		err := x.learned(&rec, c.cause)
		if errors.Is(err, store.ErrOutcomeUnknown) != c.unknown || errors.Is(err, store.ErrUnavailable) == c.unknown {
			t.Errorf("%s: %v", name, err)
		}
	}
}
