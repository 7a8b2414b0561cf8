package inbox

import (
	"context"
	"database/sql"
	"time"
)

// Store remembers events in the same database as the consumer's data. The SQL stores of this repository are such.
type Store interface {
	// RememberEvent notes in a transaction of the application that a consumer has had an event, and reports whether it is
	// the first time. While another transaction that notes the same has not ended, it waits for that.
	RememberEvent(ctx context.Context, tx *sql.Tx, consumer, eventID string) (first bool, err error)
	// PurgeEvents forgets at most limit events that were noted longer ago than age.
	PurgeEvents(ctx context.Context, age time.Duration, limit int) (purged int, err error)
	// ConsumedEvents returns which consumers have had an event, in the order of their names.
	ConsumedEvents(ctx context.Context, eventID string) ([]Consumption, error)
	// InTx runs work in a transaction of its own, which work takes from its context, with [onceward.Tx] or the way of the
	// store's own package. It commits if work returns nil. Work may be called again after a rollback that was not its own
	// doing. An error that wraps [store.ErrWorkRefused] says that the database refused at the commit what work had
	// written.
	InTx(ctx context.Context, work func(ctx context.Context) error) error
}

// Consumption is one event that one consumer has had.
type Consumption struct {
	Consumer string
	EventID  string
	// At is when, by the store's clock.
	At time.Time
}
