package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// Store keeps messages in the same database as the application's data. The SQL stores of this module implement
// it. Another store needs its own tables and statements, and proves with store/storetest that they are right.
//
// Guarantees: messages of one topic and one aggregate get their place when they are added, in the order of
// the commits. A message is claimed only if no earlier message of its aggregate is open, that is StateReady,
// StateLeased, StateBehind or StateHolding, unless the same claim takes the earlier message too. A message
// that has to wait becomes StateBehind, and StateReady again when no message is in front of it.
type Store interface {
	// AddMessage writes an entry at once, in a transaction of the application. The entry is StateReady after its Delay,
	// or StateCaptured if it has no topic. Concurrent transactions that add for one aggregate wait for each other.
	AddMessage(ctx context.Context, tx *sql.Tx, e *Entry) error

	// ClaimMessages takes messages that are due, oldest first, including messages whose lease ran
	// out, and makes them StateLeased with one new token. It counts an attempt for the first
	// message of each aggregate and for each message without an aggregate. Messages of an
	// aggregate are returned in their order. The result is empty only if no message can be taken.
	ClaimMessages(ctx context.Context, requests []ClaimRequest, lease time.Duration) ([]Claimed, error)
	// ExtendMessages extends leases to the given time from now, and returns the leases that are no longer held.
	ExtendMessages(ctx context.Context, leases []Lease, lease time.Duration) (lost []Lease, err error)
	// RecordEffect stores the receiver's id for the effect and the receiver's answer,
	// each unless it is empty. It returns [ErrFenced] if the lease is no longer held.
	RecordEffect(ctx context.Context, l Lease, providerID string, answer []byte) error
	// FinishMessages ends leases, and returns the leases that were no longer held, for which it changed nothing.
	FinishMessages(ctx context.Context, outcomes []Outcome) (fenced []Lease, err error)
	// FinishMessageTx ends a lease in the same transaction as work, or does neither. work gets the
	// transaction from its context. FinishMessageTx returns [ErrFenced] if the lease is no longer held.
	FinishMessageTx(ctx context.Context, outcome Outcome, work func(ctx context.Context) error) error
	// FreeMessages finds messages that are StateBehind although no message is in front
	// of them, because a worker died at the wrong moment, and makes them StateReady.
	FreeMessages(ctx context.Context) (freed int, err error)
	// PurgeMessages removes at most limit messages that became done or captured longer ago than age.
	PurgeMessages(ctx context.Context, age time.Duration, limit int) (purged int, err error)

	// Messages returns entries, oldest first.
	Messages(ctx context.Context, f Filter) ([]Entry, error)
	// ReplayMessage makes a dead letter StateReady, resets its attempts to zero, and stores the answer with
	// it unless the answer is empty. It returns [store.ErrNotFound] if there is no dead letter with this ID.
	ReplayMessage(ctx context.Context, id string, answer []byte) error
	// DropMessage gives up a dead letter: it becomes StateDead, no longer blocks its aggregate, and is no longer
	// counted by MessageStats. DropMessage returns [store.ErrNotFound] if there is no dead letter with this ID.
	DropMessage(ctx context.Context, id string) error
	// MessageStats counts open messages.
	MessageStats(ctx context.Context) (Stats, error)

	// WatchMessages returns a channel that receives hints that there may be new messages,
	// until stop is called. Hints may be lost, and a hint may come without a new message.
	WatchMessages() (hints <-chan struct{}, stop func())
	// HearsMessages reports whether hints from other processes currently arrive.
	HearsMessages() bool
}

// AnswerStore is a [Store] whose transactional handlers can add
// messages to their answer. It is also a [store.Transactor].
type AnswerStore interface {
	// AddToAnswer keeps an entry until the handler of the context has returned, and writes it together with the
	// answer and the handler's own writes, if these are committed. Entries of one aggregate keep their order,
	// after the entries that AddMessage wrote in the same transaction. Each run of the handler begins without
	// entries. All transactions take the locks of aggregates in the same order. AddToAnswer returns [ErrNoAnswer]
	// if the context does not belong to a transactional handler of this store, or if the entry is not
	// [Entry.OfOperation] of the operation that the handler executes, and otherwise the error of [AnswerSize.Add].
	AddToAnswer(ctx context.Context, e *Entry) error
}

// Sealer is a [Store] that keeps the payloads and headers of messages sealed. [Outbox.Entry] seals each message with
// it, so that a message is sealed even if it is added without the store, in a transaction of the store's database.
type Sealer interface {
	// SealEntry seals an entry in place, by [Entry.Seal]. The entry must not be changed afterwards.
	SealEntry(e *Entry) error
}

// These are the errors of [Outbox.AddToAnswer].
var (
	// ErrNoAnswer is returned when there is no answer to which a message could be added.
	ErrNoAnswer = errors.New("outbox: there is no answer here to add a message to: AddToAnswer is for the " +
		"transactional handlers of the store that has the outbox, with the handler's own context; " +
		"elsewhere use Add with the transaction")
	// ErrAnswerFull is returned when a handler has added as many messages to its answer as are kept in
	// memory. Messages that are added with the transaction instead come before all messages of the answer.
	ErrAnswerFull = errors.New("outbox: the answer has as many messages as it can take along: " +
		"add more with the transaction")
)

// These are the limits of one answer. All of its messages are kept in memory until the commit.
const (
	// MaxAnswerMessages is the largest number of messages.
	MaxAnswerMessages = 100
	// MaxAnswerBytes is the largest size of their payloads and headers
	// together. A single message of the largest size always fits.
	MaxAnswerBytes = MaxPayload + maxHeaders
)

// AnswerSize counts the messages that a handler has added to its answer. Stores
// keep one for each run of a handler. The zero value is an answer without messages.
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

// ClaimRequest is a topic and the number of its messages to claim.
type ClaimRequest struct {
	Topic string
	Limit int
}

// Lease is the right to deliver a message. Its token is a fence: every
// write contains the token, and a write with an old token changes nothing.
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

// Outcome is the new state of a message whose lease ends.
type Outcome struct {
	Lease
	// State is StateDone, StateDead or StateHolding; StateReady for another attempt after the time After;
	// or StateBehind for a message that was not started because an earlier message of its aggregate failed.
	State State
	After time.Duration
	// Attempts is how often a delivery was started.
	Attempts int
	// ProviderID is stored unless it is empty.
	ProviderID string
	// Error is stored as the last error unless it is empty.
	Error string
}

// Filter chooses messages. The zero value chooses all messages.
type Filter struct {
	// ID, Origin, DownstreamKey and ProviderID each choose the messages with this value,
	// unless it is zero. There are indexes on the IDs of messages and on the ids of providers.
	ID            string
	Origin        store.ID
	DownstreamKey string
	ProviderID    string
	// Topic chooses one topic unless it is empty, and States chooses some states unless it is empty.
	Topic  string
	States []State
	// Undropped leaves out dead letters that were dropped: a person has already decided about them.
	Undropped bool
	// Since leaves out messages whose IDs were made before it, unless it is zero. The time in an ID
	// comes from the clock of the program that added the message. There is no index on origins, because
	// each message would pay for it. To find the messages of an operation quickly, use its Origin and,
	// as Since, the time at which its record was made, minus the handler's duration, because a
	// transaction makes its record at its end, and minus some minutes for clocks that differ.
	Since time.Time
	// After is the ID of the last entry of the previous page: the page continues after it.
	After string
	// Limit is the largest number of entries in a page. Default: 100.
	Limit int
}

// FirstID returns the smallest possible ID of messages since
// Since: no smaller ID is chosen. It is empty without a Since.
func (f *Filter) FirstID() string {
	if f.Since.IsZero() {
		return ""
	}
	return formatID(idAt(f.Since))
}

// Stats counts open messages, for metrics.
type Stats struct {
	// Waiting is the number of messages that are StateReady, StateLeased or StateBehind. DeadLetters is the number
	// of messages that are StateDead or StateHolding and wait for a decision; dropped messages are not counted.
	Waiting, DeadLetters int
	// Oldest is when the oldest waiting message was added, or zero if no message waits.
	Oldest time.Time
}
