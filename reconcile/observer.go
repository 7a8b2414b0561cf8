package reconcile

import "github.com/onceward/onceward/store"

// ReconciledEvent is an unknown record that was asked after or settled from outside: it goes to the
// [onceward.Observer].
type ReconciledEvent struct {
	store.ID
	Operation string
	Attempt   int64
	// Outcome is "completed", "not executed", "step done", "step not executed", "step to be tried again", "postponed"
	// or "dead letter"; or, of a question about the record, "hanging" if it has not returned though its time is over,
	// and "returned" if it has since. Of those two Attempt is not known.
	Outcome string
	// Err is why nothing was learned.
	Err error
}
