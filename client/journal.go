package client

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"time"
)

// Journal keeps durable operations: the requests of a caller that are finished also if the caller crashes. Those of
// store/sqlite and store/postgres keep them beside the application's own data, in a table of their own.
//
// Its clock decides leases and windows, so that nodes whose clocks differ agree. Every method is one atomic step.
type Journal interface {
	// Add writes an operation that [NewOperation] made, in a transaction of the application: it is there if and only if
	// that is committed. It returns [ErrExists], and leaves the transaction as it was, if there is one of that key.
	Add(ctx context.Context, tx *sql.Tx, o *Operation) error

	// DueHosts returns the hosts that have operations to claim.
	DueHosts(ctx context.Context) ([]string, error)
	// Claim takes at most limit operations of a host that are due, those first that are due for longest, including those
	// whose lease ran out. Each gets a new token, and one that is sent for the first time its [Operation].FirstSent: so
	// that is on the disk before the first byte is sent.
	Claim(ctx context.Context, host string, limit int, lease time.Duration) ([]Claimed, error)
	// Settle writes down what a claim came to. It returns [ErrFenced], and changes nothing, if the token is no longer
	// current. To repeat it is harmless.
	Settle(ctx context.Context, l Lease, s Settlement) error

	// Get returns an operation, or [ErrNotFound].
	Get(ctx context.Context, key string) (Operation, error)
	// List returns operations in the order of their keys.
	List(ctx context.Context, f Filter) ([]Operation, error)
	// Stats counts what is open. It costs the more the more is open, whatever else the journal keeps.
	Stats(ctx context.Context) (Stats, error)
	// Resolve gives an operation that is StateUnknown the answer that a person found out, and has it told. It returns
	// [ErrNotFound] if there is no such operation in that state.
	Resolve(ctx context.Context, key string, answer Answer) error
	// Purge removes at most limit operations that were answered longer ago than age, and told. What is unknown stays,
	// until a person resolves it.
	Purge(ctx context.Context, age time.Duration, limit int) (purged int, err error)
}

// The errors of journals.
var (
	// ErrExists is returned when an operation is added under a key that the journal has already.
	ErrExists = errors.New("client: the journal has an operation of this key already")
	// ErrNotFound is returned when the journal has no such operation.
	ErrNotFound = errors.New("client: the journal has no such operation")
	// ErrFenced is returned to a worker that was away for longer than its lease: another has the operation now.
	ErrFenced = errors.New("client: the lease on the operation is no longer held")
)

// State is how far a durable operation is.
type State int

// The states. There is none for an operation that was lost, because none is.
const (
	// StatePending is an operation that is to be sent, or to be sent again.
	StatePending State = iota
	// StateAnswered is an operation with its answer, whatever that says.
	StateAnswered
	// StateUnknown is an operation that ended without an answer. It may have been executed, and may not be sent any
	// more, because the server may have forgotten its key: a person finds out.
	StateUnknown
)

// String returns the state as it is shown to people.
func (s State) String() string {
	switch s {
	case StatePending:
		return "pending"
	case StateAnswered:
		return "answered"
	case StateUnknown:
		return "unknown"
	}
	return "invalid"
}

// Answer is the answer to an operation.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// Truncated says that the body was longer than [MaxAnswer]: Body is its beginning.
	Truncated bool
}

// Lease is the right to work on an operation. Its token fences: one that is no longer current changes nothing.
type Lease struct {
	Key   string
	Token int64
}

// Claimed is an operation with its lease.
type Claimed struct {
	Operation
	Token int64
	// Now is the journal's time of the claim.
	Now time.Time
}

// Lease returns the lease.
func (c *Claimed) Lease() Lease { return Lease{Key: c.Key, Token: c.Token} }

// Settlement is what a claim came to.
type Settlement struct {
	// State is StateAnswered, with the answer; StateUnknown; or StatePending for another attempt.
	State  State
	Answer Answer
	// Told says that nothing is left to do. An operation that is settled and not told is claimed again, to tell of it.
	Told bool
	// After is how long to leave it alone from now on.
	After time.Duration
	// KeptFor is for how long from now on the operation may be sent, by what the service has told of its key. It is kept
	// unless it is 0.
	KeptFor time.Duration
	// Error is kept as the last error if it is not empty.
	Error string
}

// Stats is what is open in a journal.
type Stats struct {
	// Pending is how many operations are to be sent, or to be sent again, and OldestPending when the oldest of them was
	// enqueued, by the journal's clock; zero if there is none.
	Pending       int
	OldestPending time.Time
	// Unknown is how many wait for a person to resolve them.
	Unknown int
}

// Filter chooses operations. The zero value chooses all.
type Filter struct {
	// States restricts to some states, if there are any.
	States []State
	// Open leaves out those that were answered and told.
	Open bool
	// After continues behind the last operation of the page before, by its key.
	After string
	// Limit bounds the page. Default: 100.
	Limit int
}
