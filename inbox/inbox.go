// Package inbox applies each event once, however often it is delivered: consumer-side dedup in the consumer's own
// transaction, on PostgreSQL and SQLite. For a pgx.Tx there is postgres.ApplyEvent.
//
//	box := inbox.New(store)
//	applied, err := box.Do(ctx, tx, "mailer", event.ID, func(ctx context.Context) error { … })
//
// The event is remembered in the same transaction as what it led to. If that is rolled back, the event comes again and
// is applied then. The packages of broker/ do it for consumers of Kafka, NATS and RabbitMQ.
package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward"
)

// MaxName is how long the name of a consumer and the ID of an event may be.
const MaxName = 255

// Inbox applies events once.
type Inbox struct{ store Store }

// HandledEvent is an event that was handled by a consumer of the packages of broker/: it goes to the
// [onceward.Observer] of that consumer.
type HandledEvent struct {
	Consumer string
	EventID  string
	// Applied says that it was applied now; without it and without an error it had been applied before.
	Applied bool
	// Sent is when the event was made, by its sender's clock; zero if that is not known.
	Sent time.Time
	// Backlog is how many more events wait at the broker, as far as the consumer knows; a negative number says that it
	// does not.
	Backlog int
	Elapsed time.Duration
	// Err is why it was not applied.
	Err error
}

// New returns an inbox that remembers events in the store. If that is a wrapper of a store that remembers none, each
// call returns an error that wraps [errors.ErrUnsupported].
func New(store Store) *Inbox { return &Inbox{store} }

// Do runs fn unless the consumer has had the event before, and reports whether it ran. The event is remembered in tx, a
// transaction of the application: the caller commits it if there is no error, and rolls it back if there is one. A
// second delivery at the same time waits for that. A store with another type of transaction has a function of its own
// for it, such as postgres.ApplyEvent.
//
// The ID is the sender's name for the event: what stays the same when it is sent again, across all senders. If two
// senders may use the same one, put the sender into the consumer's name.
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

// Store returns the store that the inbox remembers events in.
func (b *Inbox) Store() Store { return b.store }

// CheckNames refuses names that are missing or too long. It is for the package of a store that remembers events in a
// type of transaction of its own.
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

// Handle is [Inbox.Do] in a transaction of its own, which fn takes from its context, with [onceward.Tx] or the way of
// the store's own package. Without an error the event has been applied, now or before.
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

// Purge forgets events that were applied longer ago than age, in batches, and returns how many. Keep them for longer
// than a sender may still repeat one.
func (b *Inbox) Purge(ctx context.Context, age time.Duration) (purged int, err error) {
	for {
		n, err := b.store.PurgeEvents(ctx, age, purgeBatch)
		purged += n
		if err != nil || n < purgeBatch {
			return purged, err
		}
	}
}

// purgeBatch is how many events are forgotten in one step.
const purgeBatch = 1000

// Consumed returns which consumers have had an event.
func (b *Inbox) Consumed(ctx context.Context, eventID string) ([]Consumption, error) {
	return b.store.ConsumedEvents(ctx, eventID)
}
