package onceward

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Observer receives the engine's events, for metrics, traces and logs. It is called in the request, so it must be quick
// and must not block. Keys in events are as the client sent them: an observer that writes them to a log must hash them.
type Observer interface {
	Observe(ctx context.Context, e ObserverEvent)
}

// ObserverFunc is an adapter from a function to an [Observer].
type ObserverFunc func(ctx context.Context, e ObserverEvent)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e ObserverEvent) { f(ctx, e) }

// ObserverEvent is an event: a struct of this package, or of the package of a feature, such as janitor.SweptEvent. More
// kinds may be added: an observer ignores the kinds it does not know.
type ObserverEvent any

type (
	// DecidedEvent reports a reservation that the store answered. Attempt is the record's attempt, Origin is set for a
	// grant only, and Elapsed is the duration of the call to the store. TraceID is the trace of the first execution, as
	// [Config].Propagator wrote it: a later attempt, and a replay, can be linked to it. Age is how long ago a replayed
	// answer was stored, by the store's clock: compare the largest with the retention. Waited means that the request
	// waited for an attempt in flight and was then decided again. A transaction that runs again is reported once.
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

	// ExecutedEvent reports a run of an HTTP handler, with its status and duration; or of a function of [Guard.Do],
	// which has no status, and for which Failed means that it returned an error. Unknown means that it is not known
	// what the execution did, or whether it was committed, whatever it wrote or returned. The event is sent when this
	// is known, which may be later than EndedAt, the time at which the handler returned.
	ExecutedEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Status    int
		Panicked  bool
		Failed    bool
		Unknown   bool
		Elapsed   time.Duration
		EndedAt   time.Time
	}

	// SettledEvent reports the end of an attempt, with the state of its record, which is [store.StateNone] for a
	// rejected request. Err is the reason for [store.StateUnknown], or the error that prevented the state from being
	// written. If the owner was lost, the event is sent by the reservation that discovers it, or by the sweeper, which
	// counts what it finds (janitor.SweptEvent). Unwritten means that this attempt did not bring the record into that
	// state: the write failed, and the sweeper will report the record too, or another attempt has continued the record,
	// or it is unknown whether a transaction was committed.
	SettledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		State     store.State
		Unwritten bool
		Err       error
	}

	// FencedEvent reports a write that was refused because its attempt is no longer current.
	FencedEvent struct {
		store.ID
		Operation string
		Err       *store.FencedError
	}

	// LeaseLostEvent reports an owner that can no longer be sure of its right to execute, with the reason in Err.
	LeaseLostEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Err       error
	}

	// StoreCalledEvent reports a finished call to the store for an attempt, with its duration. Call is the method in
	// words, such as "complete", and Err is the error or refusal, or nil. A reservation that was answered is a
	// [DecidedEvent] instead; only a failed reservation is reported here. A transaction is reported as "commit", with
	// the duration from the end of the handler. A repeated call is reported each time. Delay is how late a heartbeat,
	// "extend", was sent: a process that pauses for longer than the rest of a lease loses it.
	StoreCalledEvent struct {
		store.ID
		Operation string
		Attempt   int64
		Call      string
		Delay     time.Duration
		Elapsed   time.Duration
		Err       error
	}

	// StoreFailedEvent reports a call that failed because of the store. Call is the method in words, such as "reserve".
	StoreFailedEvent struct {
		Operation string
		Call      string
		Err       error
	}

	// RejectedEvent reports a request that was refused before any reservation, with the code and the instance of the
	// problem that the client got.
	RejectedEvent struct {
		Operation string
		Code      string
		Instance  string
	}

	// ProblemEvent reports a problem that was sent after a reservation, stored as an answer, or sent by a status
	// handler. Instance is the instance that the client got.
	ProblemEvent struct {
		store.ID
		Operation string
		Status    int
		Code      string
		Instance  string
	}

	// BypassedEvent reports an answer that a handler wrote past the guard, so that it was not stored: to a writer other
	// than the guard's writer, or, if Late, to the guard's writer after the handler had returned. Status is 0 if it
	// cannot be seen.
	BypassedEvent struct {
		store.ID
		Operation string
		Status    int
		Late      bool
	}

	// UnusedTransactionEvent reports a transactional execution that was committed although its handler never took the
	// transaction from the context: if the handler wrote anything, the writes bypassed the guard.
	UnusedTransactionEvent struct{ Operation string }

	// SecondConnectionEvent reports a transactional execution whose handler asked the pool that holds its transaction
	// for another connection. Only watched pools report it, such as pools watched by postgres.WatchPool.
	SecondConnectionEvent struct{ Operation string }

	// UnprotectedEvent reports a request that ran without protection because it carried no key on a route where the key
	// is optional.
	UnprotectedEvent struct{ Operation string }

	// WorkerEvent reports a finished turn of a background worker, with or without an error. The workers of this
	// repository are the "sweeper", the "reaper", the "purger", the "resumer", the "poller", the "outbox" and the
	// "exporter"; consumers report each message instead.
	WorkerEvent struct {
		Worker string
		// Backlog is how much was due at the start of the turn; negative if this is not known.
		Backlog int
		// Oldest is when the oldest due item became due, by the store's clock; zero if there was none, or if this is
		// not known.
		Oldest  time.Time
		Elapsed time.Duration
		Err     error
	}
)

// Propagator carries a trace where no context can carry it: in a record that another process continues, or a message
// that a worker delivers later. Package telemetry has one for OpenTelemetry; without it no trace is kept.
type Propagator interface {
	// TraceID returns the trace of a context, and the place in it; empty if there is none. It is kept with a record.
	TraceID(ctx context.Context) string
	// Continue returns a context that belongs to a trace returned by TraceID. It ignores an id that it cannot read.
	Continue(ctx context.Context, traceID string) context.Context
	// Inject adds the trace of a context to the headers of a message.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns a context that belongs to the trace in the headers of a message, if there is one.
	Extract(ctx context.Context, headers map[string]string) context.Context
}
