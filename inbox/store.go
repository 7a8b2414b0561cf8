package inbox

import (
	"context"
	"database/sql"
	"time"
)

// Store records events in the same database as the consumer's data. The SQL stores of this repository implement it.
type Store interface {
	// RememberEvent records in a transaction of the application that a consumer has had
	// an event, and reports whether it is the first time. If another open transaction
	// records the same event, RememberEvent waits until that transaction ends.
	RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (first bool, err error)
	// PurgeEvents removes at most limit events that were recorded longer ago than age.
	PurgeEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error)
	// ConsumedEvents returns which consumers have had an event, in the order of their names.
	ConsumedEvents(ctx context.Context, eventID string) ([]Consumption, error)
	// InTx runs work in its own transaction, which work gets from its context, with
	// [onceward.Tx] or the function of the store's own package. It commits if work returns nil.
	// Work may be called again after a rollback that it did not request. An error that wraps
	// [store.ErrWorkRefused] means that the database refused work's writes at the commit.
	InTx(ctx context.Context, work func(ctx context.Context) error) error
}

// Consumption is one event that one consumer has had.
type Consumption struct {
	Consumer string
	EventID  string
	// At is when the consumer had it, by the store's clock.
	At time.Time
}
