package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/onceward/onceward/store"
)

// TestFateOfAStep: what the server says of the transaction decides, and not whether the record is as it was, which it
// also is after a step that only wrote to tables of the application (S6). But a record without the point that the step
// stored proves that the number is another transaction's, as it may be after a fail-over that lost the step.
func TestFateOfAStep(t *testing.T) {
	t.Parallel()
	before := store.Record{Version: store.RecordVersion, State: store.StateInProgress, Attempt: 7, Point: "reserved"}
	after := before
	after.Point = "charged"
	for _, test := range []struct {
		became fate
		wanted store.Record
		found  store.Record
		want   error
	}{
		{fateCommitted, after, after, nil},
		{fateCommitted, after, before, store.ErrOutcomeUnknown},
		{fateCommitted, before, before, nil},
		{fateUndone, after, before, store.ErrUnavailable},
		{fateUndone, before, before, store.ErrUnavailable},
		{"", after, before, store.ErrOutcomeUnknown},
	} {
		x := &stepPlan{
			transaction: transaction{store: &Store{}, view: view{before: before}}, attempt: 7, wanted: test.wanted,
		}
		if err := x.learned(&test.found, test.became, io.ErrUnexpectedEOF); !errors.Is(err, test.want) {
			t.Errorf("S6: a transaction that is %q, from %s to %s with %s found: %v, want %v", string(test.became), before.Point,
				test.wanted.Point, test.found.Point, err, test.want)
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
