package outbox

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Store keeps messages in the same database as the application's data. The SQL stores of this module are such; another
// joins by bringing its tables and statements, and shows that they are right with store/storetest.
//
// What it promises: messages of one topic and one aggregate get their place when they are added, in the order of commits.
// One is claimed only if no earlier one of its aggregate is open, that is StateReady, StateLeased, StateBehind or StateHolding, unless the same
// claim takes that one too; one that has to wait becomes StateBehind, and StateReady again when nothing is in front of it.
type Store interface {
	// AddMessage writes an entry in a transaction of the application: a *sql.Tx, or what the store's own package works with.
	// It is StateReady after its Delay, or StateCaptured if it has no topic. Concurrent transactions that add for one aggregate wait
	// for each other, here or when they are committed.
	AddMessage(ctx context.Context, tx any, e *Entry) error

	// ClaimMessages takes messages that are due, the oldest first, including those whose lease ran out, and makes them
	// StateLeased under one new token. It counts a try for the first of an aggregate and for those without one. Those of an
	// aggregate are returned in their order. It returns none only if there is none that can be taken.
	ClaimMessages(ctx context.Context, wants []ClaimRequest, lease time.Duration) ([]Claimed, error)
	// ExtendMessages makes leases last for the given time from now, and returns those that are no longer held.
	ExtendMessages(ctx context.Context, leases []Lease, lease time.Duration) (lost []Lease, err error)
	// RecordProviderID keeps what the receiver called the effect. It returns [ErrFenced] if the lease is no longer held.
	RecordProviderID(ctx context.Context, l Lease, providerID string) error
	// FinishMessages ends leases, and returns those that were no longer held, for which it changed nothing.
	FinishMessages(ctx context.Context, endings []Outcome) (fenced []Lease, err error)
	// FinishMessageTx ends a lease in the same transaction as work, which takes it from its context, or does neither. It
	// returns [ErrFenced] if the lease is no longer held.
	FinishMessageTx(ctx context.Context, ending Outcome, work func(ctx context.Context) error) error
	// FreeMessages finds messages that are StateBehind nothing, because a worker died at the wrong moment, and makes them StateReady.
	FreeMessages(ctx context.Context) (freed int, err error)
	// PurgeMessages removes at most limit messages that were done, or only captured, longer ago than that.
	PurgeMessages(ctx context.Context, age time.Duration, limit int) (purged int, err error)

	// Messages returns entries, the oldest first.
	Messages(ctx context.Context, f Filter) ([]Entry, error)
	// ReplayMessage makes a dead letter StateReady, and begins to count its tries anew. It returns [store.ErrNotFound] if there is no
	// dead letter of that ID.
	ReplayMessage(ctx context.Context, id string) error
	// DropMessage makes a dead letter that holds up its aggregate one that does not, and leaves other dead letters alone. It
	// returns [store.ErrNotFound] if there is no dead letter of that ID.
	DropMessage(ctx context.Context, id string) error
	// MessageStats counts what is open.
	MessageStats(ctx context.Context) (Stats, error)

	// WatchMessages returns a channel on which it is said that there may be new messages, until stop is called. Hints may be
	// lost, and need not mean anything.
	WatchMessages() (hints <-chan struct{}, stop func())
	// HearsMessages reports whether hints of other processes arrive at present.
	HearsMessages() bool
}

// ClaimRequest is how many messages of a topic to claim.
type ClaimRequest struct {
	Topic string
	Limit int
}

// Lease is the right to deliver a message. Its token fences: every write names it, and one that is no longer current changes
// nothing.
type Lease struct {
	ID    string
	Token int64
}

// Claimed is a message with its lease.
type Claimed struct {
	Entry
	Token int64
}

// Lease returns the lease.
func (c *Claimed) Lease() Lease { return Lease{ID: c.ID, Token: c.Token} }

// Outcome is what becomes of a message.
type Outcome struct {
	Lease
	// State is StateDone, StateDead or StateHolding; StateReady for another try After a while; or StateBehind for one that was not begun because an
	// earlier one of its aggregate failed.
	State State
	After time.Duration
	// Attempts is how often a delivery was begun.
	Attempts int
	// ProviderID is kept if it is not empty.
	ProviderID string
	// Error is kept as the last error if it is not empty.
	Error string
}

// Filter chooses messages. The zero value chooses all.
type Filter struct {
	// ID, Origin and DownstreamKey each restrict to messages that have it, if it is not zero.
	ID            string
	Origin        store.ID
	DownstreamKey string
	// Topic restricts to one topic if it is not empty, and States to some states if there are any.
	Topic  string
	States []State
	// After continues behind the last entry of the page before, by its ID.
	After string
	// Limit bounds the page. Default: 100.
	Limit int
}

// Stats counts what is open, for metrics.
type Stats struct {
	// Waiting counts messages that are StateReady, StateLeased or StateBehind, DeadLetters those that are StateDead or StateHolding.
	Waiting, DeadLetters int
	// Oldest is when the oldest of those that wait was added. It is zero if there is none.
	Oldest time.Time
}
