package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// Store keeps messages in the same database as the application's data. The SQL stores of this module are such; another
// joins by bringing its tables and statements, and shows that they are right with store/storetest.
//
// What it promises: messages of one topic and one aggregate get their place when they are added, in the order of
// commits. One is claimed only if no earlier one of its aggregate is open, that is StateReady, StateLeased, StateBehind
// or StateHolding, unless the same claim takes that one too; one that has to wait becomes StateBehind, and StateReady
// again when nothing is in front of it.
type Store interface {
	// AddMessage writes an entry in a transaction of the application, at once. It is StateReady after its Delay, or
	// StateCaptured if it has no topic. Concurrent transactions that add for one aggregate wait for each other.
	AddMessage(ctx context.Context, tx *sql.Tx, e *Entry) error

	// ClaimMessages takes messages that are due, the oldest first, including those whose lease ran out, and makes them
	// StateLeased under one new token. It counts an attempt for the first of an aggregate and for those without one.
	// Those of an aggregate are returned in their order. It returns none only if there is none that can be taken.
	ClaimMessages(ctx context.Context, requests []ClaimRequest, lease time.Duration) ([]Claimed, error)
	// ExtendMessages makes leases last for the given time from now, and returns those that are no longer held.
	ExtendMessages(ctx context.Context, leases []Lease, lease time.Duration) (lost []Lease, err error)
	// RecordEffect keeps what the receiver called the effect and what it answered, each unless it is empty. It returns
	// [ErrFenced] if the lease is no longer held.
	RecordEffect(ctx context.Context, l Lease, providerID string, answer []byte) error
	// FinishMessages ends leases, and returns those that were no longer held, for which it changed nothing.
	FinishMessages(ctx context.Context, outcomes []Outcome) (fenced []Lease, err error)
	// FinishMessageTx ends a lease in the same transaction as work, which takes it from its context, or does neither.
	// It returns [ErrFenced] if the lease is no longer held.
	FinishMessageTx(ctx context.Context, outcome Outcome, work func(ctx context.Context) error) error
	// FreeMessages finds messages that are StateBehind nothing, because a worker died at the wrong moment, and makes
	// them StateReady.
	FreeMessages(ctx context.Context) (freed int, err error)
	// PurgeMessages removes at most limit messages that were done, or only captured, longer ago than age.
	PurgeMessages(ctx context.Context, age time.Duration, limit int) (purged int, err error)

	// Messages returns entries, the oldest first.
	Messages(ctx context.Context, f Filter) ([]Entry, error)
	// ReplayMessage makes a dead letter StateReady, counts its attempts again from zero, and keeps the answer with it
	// unless that is empty. It returns [store.ErrNotFound] if there is no dead letter of that ID.
	ReplayMessage(ctx context.Context, id string, answer []byte) error
	// DropMessage gives a dead letter up: it is StateDead, holds up its aggregate no longer, and is not counted by
	// MessageStats any more. It returns [store.ErrNotFound] if there is no dead letter of that ID.
	DropMessage(ctx context.Context, id string) error
	// MessageStats counts what is open.
	MessageStats(ctx context.Context) (Stats, error)

	// WatchMessages returns a channel on which it is said that there may be new messages, until stop is called. Hints
	// may be lost, and need not mean anything.
	WatchMessages() (hints <-chan struct{}, stop func())
	// HearsMessages reports whether hints of other processes arrive at present.
	HearsMessages() bool
}

// AnswerStore is a [Store] whose transactional handlers can add messages to their answer. It is a [store.Transactor]
// too.
type AnswerStore interface {
	// AddToAnswer keeps an entry until the handler that the context belongs to has returned, and writes it together
	// with the answer and the handler's own writes, if these are committed. Entries of one aggregate keep their order,
	// behind those that AddMessage wrote in the same transaction. Each run of the handler begins without entries. The
	// locks of aggregates are taken in the same order by all transactions. It returns [ErrNoAnswer] if the context is
	// not that of a transactional handler of this store, or if the entry is not [Entry.OfOperation] that it executes,
	// and what [AnswerSize.Add] says.
	AddToAnswer(ctx context.Context, e *Entry) error
}

// Sealer is a [Store] that keeps the payloads and headers of messages sealed. [Outbox.Entry] has each message sealed by
// it, so that one that is added past the store, in a transaction of its database, is sealed too.
type Sealer interface {
	// SealEntry seals an entry in its place, by [Entry.Seal]. The entry is not to be changed afterwards.
	SealEntry(e *Entry) error
}

// The errors of [Outbox.AddToAnswer].
var (
	// ErrNoAnswer is returned when there is no answer that a message could go along with.
	ErrNoAnswer = errors.New("outbox: there is no answer here to add a message to: AddToAnswer is for the " +
		"transactional handlers of the store that has the outbox, with the handler's own context; " +
		"elsewhere use Add with the transaction")
	// ErrAnswerFull is returned when a handler has added as much to its answer as is kept in memory. What is added with
	// the transaction instead comes before all of that.
	ErrAnswerFull = errors.New("outbox: the answer has as many messages as it can take along: " +
		"add more with the transaction")
)

// The most that one answer takes along. All of it is kept in memory until the commit.
const (
	// MaxAnswerMessages is how many messages.
	MaxAnswerMessages = 100
	// MaxAnswerBytes is how large their payloads and headers may be together. The largest message alone is always
	// taken.
	MaxAnswerBytes = MaxPayload + maxHeaders
)

// AnswerSize counts what a handler has added to its answer. Stores keep one for each run of a handler; the zero value
// is that of an answer without messages.
type AnswerSize struct{ messages, bytes int }

// Add counts an entry, or returns [ErrAnswerFull].
func (s *AnswerSize) Add(e *Entry) error {
	size := e.size()
	if s.messages >= MaxAnswerMessages || s.bytes+size > MaxAnswerBytes {
		return fmt.Errorf("%w: %d messages of %d bytes, and one of %d", ErrAnswerFull, s.messages, s.bytes, size)
	}
	s.messages, s.bytes = s.messages+1, s.bytes+size
	return nil
}

// ClaimRequest is how many messages of a topic to claim.
type ClaimRequest struct {
	Topic string
	Limit int
}

// Lease is the right to deliver a message. Its token fences: every write names it, and one that is no longer current
// changes nothing.
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
	// State is StateDone, StateDead or StateHolding; StateReady for another attempt After a while; or StateBehind for
	// one that was not begun because an earlier one of its aggregate failed.
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
	// ID, Origin, DownstreamKey and ProviderID each restrict to messages that have it, if it is not zero. There is an index
	// on IDs and on those of providers.
	ID            string
	Origin        store.ID
	DownstreamKey string
	ProviderID    string
	// Topic restricts to one topic if it is not empty, and States to some states if there are any.
	Topic  string
	States []State
	// Undropped leaves out dead letters that were dropped: a person has decided about them.
	Undropped bool
	// Since leaves out messages whose IDs were made before it, if it is not zero: by the clock of the program that added
	// them, as [Message] IDs tell. There is no index on origins, which each message would pay for; what an operation added
	// is found quickly by its Origin and the time at which its record was made, less what the handler took, because a
	// transaction makes its record at its end, and some minutes for clocks that differ.
	Since time.Time
	// After continues behind the last entry of the page before, by its ID.
	After string
	// Limit bounds the page. Default: 100.
	Limit int
}

// FirstID is what the IDs of messages since Since begin with: no smaller one is chosen. It is empty without a Since.
func (f *Filter) FirstID() string {
	if f.Since.IsZero() {
		return ""
	}
	return formatID(idAt(f.Since))
}

// Stats counts what is open, for metrics.
type Stats struct {
	// Waiting counts messages that are StateReady, StateLeased or StateBehind, DeadLetters those that are StateDead or
	// StateHolding and wait for a decision: not those that were dropped.
	Waiting, DeadLetters int
	// Oldest is when the oldest of those that wait was added. It is zero if there is none.
	Oldest time.Time
}
