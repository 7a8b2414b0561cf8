package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestFateOfAStep: the name of the step in the record decides, and not whether the record is as it was, which it also is
// after a step that only wrote to tables of the application (S6). Where the name is missing, what the server says of the
// transaction proves no commit: after a fail-over that lost the step its number may be another transaction's.
func TestFateOfAStep(t *testing.T) {
	t.Parallel()
	const own, another = 4711, 815
	current := store.Record{Version: store.RecordVersion, State: store.StateInProgress, Attempt: 7, Point: "reserved"}
	taken := current
	taken.Attempt = 8
	for _, test := range []struct {
		became fate
		step   int64
		found  store.Record
		want   error
	}{
		{fateCommitted, own, current, nil},
		{"", own, current, nil},
		{fateCommitted, another, current, store.ErrOutcomeUnknown},
		{fateCommitted, 0, current, store.ErrOutcomeUnknown},
		{fateCommitted, 0, taken, store.ErrOutcomeUnknown},
		{fateUndone, another, current, store.ErrUnavailable},
		{fateUndone, 0, current, store.ErrUnavailable},
		{fateUndone, 0, taken, store.ErrFenced},
		{"", another, current, store.ErrOutcomeUnknown},
	} {
		x := &stepPlan{
			transaction: transaction{store: &Store{}, view: view{before: current}, foundStep: test.step}, attempt: 7, name: own,
		}
		if err := x.learned(&test.found, test.became, io.ErrUnexpectedEOF); !errors.Is(err, test.want) {
			t.Errorf("S6: a transaction that is %q, with the step %d in attempt %d: %v, want %v", string(test.became), test.step,
				test.found.Attempt, err, test.want)
		}
	}
}

// TestFateWithoutARecord: a number that the server calls committed, without the record of the transaction, may be the
// number of another one: nothing is answered as executed.
func TestFateWithoutARecord(t *testing.T) {
	t.Parallel()
	settled := store.Record{State: store.StateCompleted, Attempt: 7, Response: store.Response{Status: 201}}
	x := &handlerPlan{transaction: transaction{store: new(Store)}, settled: settled}
	if err := x.learned(new(store.Record), fateCommitted, io.ErrUnexpectedEOF); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("S7: committed, and there is no record: %v, want ErrOutcomeUnknown", err)
	}
}
