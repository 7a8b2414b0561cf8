// Package inbox applies each event once, however often it is delivered: deduplication in the consumer's own
// transaction, on SQL stores. For a pgx.Tx there is postgres.ApplyEvent.
//
//	box := inbox.New(store)
//	applied, err := box.Do(ctx, tx, "mailer", event.ID, func(ctx context.Context) error { … })
//
// The event is recorded in the same transaction as its effects. If that is rolled back, the event is delivered again
// and applied then. The packages of broker/ do this for consumers of Kafka, NATS and RabbitMQ.
package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
)

// MaxName is the longest name of a consumer and the longest ID of an event, in bytes.
const MaxName = 255

// Inbox applies events once.
type Inbox struct{ store Store }

// HandledEvent reports an event that was handled by a consumer of the packages of broker/ to the consumer's
// [onceward.Observer].
type HandledEvent struct {
	Consumer string
	EventID  string
	// Applied means that the event was applied now. If it is false and Err is nil, the event had been applied before.
	Applied bool
	// Sent is when the event was made, by its sender's clock, or zero if this is not known.
	Sent time.Time
	// Backlog is how many more events wait at the broker, as far
	// as the consumer knows, or negative if this is not known.
	Backlog int
	Elapsed time.Duration
	// Err is the reason why the event was not applied.
	Err error
}

// New returns an inbox that records events in the store. If it is a wrapper of a store that cannot record events, each
// call returns an error that wraps [errors.ErrUnsupported].
func New(store Store) *Inbox { return &Inbox{store} }

// Do runs fn unless the consumer has had the event before, and reports whether fn ran. The event is
// recorded in tx, a transaction of the application: the caller commits it if there is no error, and
// rolls it back if there is one. A second delivery at the same time waits until the transaction ends.
// A store with another type of transaction has its own function for this, such as postgres.ApplyEvent.
//
// The ID is the sender's name for the event. It stays the same when the event is sent again, and it is
// unique across all senders. If two senders may use the same ID, put the sender into the consumer's name.
func (b *Inbox) Do(
	ctx context.Context, tx *sql.Tx, consumer, eventID string, fn func(ctx context.Context) error,
) (applied bool, err error) {
	if tx == nil {
		return false, errors.New("inbox: Do needs the transaction in which the event is applied")
	}
	if err := CheckNames(consumer, eventID); err != nil {
		return false, err
	}
	first, err := b.store.RememberEvent(ctx, tx, consumer, eventID)
	if err != nil || !first {
		return false, err
	}
	return true, fn(ctx)
}

// Store returns the store in which the inbox records events.
func (b *Inbox) Store() Store { return b.store }

// CheckNames refuses names that are missing or too long. It is for the package of a store that records events in its
// own type of transaction.
func CheckNames(consumer, eventID string) error {
	for _, name := range []struct{ what, value string }{{"name of the consumer", consumer}, {"ID of the event", eventID}} {
		if name.value == "" {
			return fmt.Errorf("inbox: the %s is missing", name.what)
		}
		if len(name.value) > MaxName {
			return fmt.Errorf("inbox: the %s is %d bytes long, and at most %d are allowed", name.what, len(name.value), MaxName)
		}
	}
	return nil
}

// Handle does the same as [Inbox.Do] in its own transaction, which fn gets from its context, with [onceward.Tx] or the
// function of the store's own package. Without an error the event has been applied, now or before.
func (b *Inbox) Handle(
	ctx context.Context, consumer, eventID string, fn func(ctx context.Context) error,
) (applied bool, err error) {
	if err := CheckNames(consumer, eventID); err != nil {
		return false, err
	}
	err = b.store.InTx(ctx, func(ctx context.Context) error {
		applied = false
		first, err := b.store.RememberEvent(ctx, onceward.Tx(ctx), consumer, eventID)
		if err != nil || !first {
			return err
		}
		applied = true
		return fn(ctx)
	})
	return applied && err == nil, err
}

// Purge removes events that were applied longer ago than age, in batches, and
// returns how many it removed. Keep events for longer than a sender may repeat them.
func (b *Inbox) Purge(ctx context.Context, age time.Duration) (purged int, err error) {
	for {
		n, err := b.store.PurgeEvents(ctx, age, purgeBatch)
		purged += n
		if err != nil || n < purgeBatch {
			return purged, err
		}
	}
}

// purgeBatch is how many events are removed in one step.
const purgeBatch = 1000

// Consumed returns the consumers that have had an event.
func (b *Inbox) Consumed(ctx context.Context, eventID string) ([]Consumption, error) {
	return b.store.ConsumedEvents(ctx, eventID)
}
