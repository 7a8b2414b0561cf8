package onceward

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Observer is told what the engine does: for metrics, traces and logs. It is called on the path of the request, so it must
// be quick and must not block. Keys in events are as the client sent them: an observer that writes them down hashes them.
type Observer interface {
	Observe(ctx context.Context, e ObserverEvent)
}

// ObserverFunc is a function that is an [Observer].
type ObserverFunc func(ctx context.Context, e ObserverEvent)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e ObserverEvent) { f(ctx, e) }

// ObserverEvent is one of the event structs of this package. More kinds may come: an observer ignores what it does not
// know.
type ObserverEvent interface{ observerEvent() }

type (
	// DecidedEvent is a reservation that was answered.
	DecidedEvent struct {
		store.ID
		Operation string
		Decision  store.Decision
		Origin    store.Origin
		Attempt   int64
		Elapsed   time.Duration
	}

	// ExecutedEvent is a handler that has ended.
	ExecutedEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Status    int
		Panicked  bool
		Elapsed   time.Duration
	}

	// SettledEvent is the end of an attempt: the state that its record was left in. Err is why that is [store.StateUnknown], or
	// why the state could not be written.
	SettledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		State     store.State
		Err       error
	}

	// FencedEvent is a write that was refused because its attempt is no longer current.
	FencedEvent struct {
		store.ID
		Operation string
		Err       *store.FencedError
	}

	// LeaseLostEvent is an owner that can no longer be sure of its right to execute.
	LeaseLostEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Err       error
	}

	// StoreFailedEvent is a call to the store that failed for a reason of the store.
	StoreFailedEvent struct {
		Operation string
		Call      string
		Err       error
	}

	// DeliveredEvent is a delivery from an outbox that has ended: the topic of the message, its ID, the operation that added
	// it if one did, and the outcome, one of "done", "retry", "dead letter" and "lost". Err is why it is not done.
	DeliveredEvent struct {
		store.ID
		Topic    string
		Message  string
		Attempts int
		Outcome  string
		Elapsed  time.Duration
		Err      error
	}

	// RejectedEvent is a request that was refused before any reservation, with the code of its problem.
	RejectedEvent struct {
		Operation string
		Code      string
	}

	// UnprotectedEvent is a request that ran without protection because it carried no key on a route where the key is
	// optional.
	UnprotectedEvent struct{ Operation string }

	// SweptEvent is a run of the sweeper.
	SweptEvent struct{ Count int }

	// ReapedEvent is a run of the reaper.
	ReapedEvent struct{ Count int }

	// ReconciledEvent is an unknown record that was asked after or settled from outside.
	ReconciledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		// Outcome is "completed", "not executed", "step done", "step not executed", "step to be tried again", "postponed" or
		// "dead letter"; or, of a question about the record, "hanging" if it has not returned though its time is over, and
		// "returned" if it has since. Of those two Attempt is not known.
		Outcome string
		// Err is why nothing was learned.
		Err error
	}

	// ReceivedEvent is a webhook delivery.
	ReceivedEvent struct {
		Source string
		// Outcome is "kept", "duplicate", "refused" or "failed".
		Outcome string
		Err     error
	}

	// LedgerFindingEvent is a difference between a provider's ledger and the local one.
	LedgerFindingEvent struct {
		// Run names the comparison, and Kind the difference.
		Run  string
		Kind string
		Key  string
	}

	// LedgerWindowEvent is what became of a window of a ledger comparison that was due.
	LedgerWindowEvent struct {
		// Run names the comparison and the window.
		Run string
		// Outcome is "compared", "failed" or "given up".
		Outcome string
		// Tries is how often it could not be compared, and Err why it could not be now.
		Tries int
		Err   error
	}
)

func (DecidedEvent) observerEvent()       {}
func (ExecutedEvent) observerEvent()      {}
func (SettledEvent) observerEvent()       {}
func (FencedEvent) observerEvent()        {}
func (LeaseLostEvent) observerEvent()     {}
func (StoreFailedEvent) observerEvent()   {}
func (DeliveredEvent) observerEvent()     {}
func (RejectedEvent) observerEvent()      {}
func (UnprotectedEvent) observerEvent()   {}
func (SweptEvent) observerEvent()         {}
func (ReapedEvent) observerEvent()        {}
func (ReconciledEvent) observerEvent()    {}
func (ReceivedEvent) observerEvent()      {}
func (LedgerFindingEvent) observerEvent() {}
func (LedgerWindowEvent) observerEvent()  {}
