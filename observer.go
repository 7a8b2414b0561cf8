package onceward

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Observer is told what the engine does: for metrics, traces and logs. It is called on the path of the request, so it
// must be quick and must not block. Keys in events are as the client sent them: an observer that writes them down
// hashes them.
type Observer interface {
	Observe(ctx context.Context, e ObserverEvent)
}

// ObserverFunc is a function that is an [Observer].
type ObserverFunc func(ctx context.Context, e ObserverEvent)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e ObserverEvent) { f(ctx, e) }

// ObserverEvent is an event: a struct of this package, or of the package of a feature, such as janitor.SweptEvent. More
// kinds may come: an observer ignores what it does not know.
type ObserverEvent any

type (
	// DecidedEvent is a reservation that was answered. Attempt is that of the record, Origin counts for a grant alone,
	// and Elapsed is the time that the store took. TraceID is that of the first execution, as [Config].Propagator wrote
	// it: an attempt that is not the first one, and a replay, can be linked to it. Age is how long ago a replayed answer
	// was stored, by the store's clock: with the longest of them a retention can be compared. Waited says that the request
	// has been decided about before, and has waited for an attempt in flight since. A transaction that runs again is told
	// of once.
	DecidedEvent struct {
		store.ID
		Operation string
		Decision  store.Decision
		Origin    store.Origin
		Attempt   int64
		Waited    bool
		TraceID   string
		Age       time.Duration
		Elapsed   time.Duration
	}

	// ExecutedEvent is an HTTP handler that has ended, with the status that it wrote and the time that it took; or a
	// function of [Guard.Do], which has no status, and Failed if it returned an error. Unknown is that by its end it is
	// not known what the execution did, whatever it wrote or returned.
	ExecutedEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Status    int
		Panicked  bool
		Failed    bool
		Unknown   bool
		Elapsed   time.Duration
	}

	// SettledEvent is the end of an attempt: the state that its record was left in, which is [store.StateNone] for a
	// request that was rejected. Err is why that is [store.StateUnknown], or why the state could not be written. Of an
	// attempt whose owner was lost the reservation tells that finds it, unless the sweeper was first: it counts what it
	// finds (janitor.SweptEvent). Unwritten says that the record is not in that state by this attempt: it could not be
	// written, and the sweeper will tell of it too, or others have gone on with the record, or a commit is in doubt.
	SettledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		State     store.State
		Unwritten bool
		Err       error
	}

	// FencedEvent is a write that was refused because its attempt is no longer current.
	FencedEvent struct {
		store.ID
		Operation string
		Err       *store.FencedError
	}

	// LeaseLostEvent is an owner that can no longer be sure of its right to execute, and Err why.
	LeaseLostEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Err       error
	}

	// StoreCalledEvent is a call to the store for an attempt that has ended, with the time that it took. Call is the
	// method in words, such as "complete", and Err why it failed or was refused; nil if it did not. A reservation that was
	// answered is a [DecidedEvent] instead, and one that was not is here; a transaction is "commit", from the end of the
	// handler on. Of a call that is repeated there is one for each time. Delay is how late a heartbeat, "extend", was
	// sent: a process that pauses for longer than what is left of a lease loses it.
	StoreCalledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Call      string
		Delay     time.Duration
		Elapsed   time.Duration
		Err       error
	}

	// StoreFailedEvent is a call to the store that failed for a reason of the store. Call is the method in words, such as
	// "reserve".
	StoreFailedEvent struct {
		Operation string
		Call      string
		Err       error
	}

	// RejectedEvent is a request that was refused before any reservation, with the code of its problem and the instance
	// that the client was told.
	RejectedEvent struct {
		Operation string
		Code      string
		Instance  string
	}

	// ProblemEvent is a problem that Onceward answered a request with after its reservation, or stored as its answer, and
	// one of a status handler. Instance is what the client was told.
	ProblemEvent struct {
		store.ID
		Operation string
		Status    int
		Code      string
		Instance  string
	}

	// BypassedEvent is an answer that a handler gave past the guard, so that it was not stored: to another writer than
	// the guard's, or, if Late, to the guard's own after it had returned. Status is 0 if it cannot be seen.
	BypassedEvent struct {
		store.ID
		Operation string
		Status    int
		Late      bool
	}

	// UnusedTransactionEvent is a transactional execution that was committed although its handler never asked the context
	// for the transaction: if it wrote anything, then past the guard.
	UnusedTransactionEvent struct{ Operation string }

	// SecondConnectionEvent is a transactional execution whose handler asked the pool that holds its transaction for another
	// connection. Pools report that which are watched, as by postgres.WatchPool.
	SecondConnectionEvent struct{ Operation string }

	// UnprotectedEvent is a request that ran without protection because it carried no key on a route where the key is
	// optional.
	UnprotectedEvent struct{ Operation string }

	// WorkerEvent is a turn of a worker in the background that has ended, with or without an error. Those of this
	// repository are the "sweeper", the "reaper", the "purger", the "resumer", the "poller", the "outbox" and the
	// "exporter"; consumers tell of each message instead.
	WorkerEvent struct {
		Worker string
		// Backlog is how much was due when it looked; a negative number says that it does not know.
		Backlog int
		// Oldest is when the oldest of that became due, by the store's clock; zero if there was none, or it does not know.
		Oldest  time.Time
		Elapsed time.Duration
		Err     error
	}
)

// Propagator carries the trace that a context belongs to over gaps that no context crosses: a record that another
// process goes on with, a message that a worker delivers later. Package telemetry has one for OpenTelemetry; without
// it nothing here knows what a trace is.
type Propagator interface {
	// TraceID returns the trace, and the place in it, that a context belongs to; empty if it belongs to none. It is kept
	// with a record.
	TraceID(ctx context.Context) string
	// Continue returns a context that belongs to the trace that TraceID has returned. What it cannot read it ignores.
	Continue(ctx context.Context, traceID string) context.Context
	// Inject adds the trace that a context belongs to to the headers of a message.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns a context that belongs to the trace in the headers of a message, if there is one.
	Extract(ctx context.Context, headers map[string]string) context.Context
}
