package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestFateOfAStep: what the server says of the transaction decides, and not whether the record is as it was, which it
// also is behind a step that only wrote to tables of the application (S6).
func TestFateOfAStep(t *testing.T) {
	t.Parallel()
	rec := store.Record{Version: store.RecordVersion, State: store.StateInProgress, Attempt: 7, Point: "charged"}
	for became, want := range map[fate]error{
		fateCommitted: nil, fateUndone: store.ErrUnavailable, "": store.ErrOutcomeUnknown,
	} {
		x := &stepPlan{
			transaction: transaction{store: &Store{}, view: view{before: rec}}, attempt: 7, wanted: rec,
		}
		if err := x.learned(&rec, became, io.ErrUnexpectedEOF); !errors.Is(err, want) {
			t.Errorf("S6: a transaction that is %q: %v, want %v", string(became), err, want)
		}
	}
}
