package store

import (
	"context"
	"slices"
	"time"
)

// Finder is a store that finds a record by an index other than its ID: a person with a log line, or with a provider's
// id, finds the operation in a store of any size. The records come without the bodies of their responses and without
// their data, as from a [Lister].
type Finder interface {
	// FindHash returns the record whose ID has that hash, in the form of [ID.Hash]. It returns [ErrNotFound] if there
	// is no such record, or if the text is not a hash: see [ParseHash].
	FindHash(ctx context.Context, hash string) (Record, error)
	// FindProviderID returns at most [MaxFound] records with an id that a provider gave, newest first: ids of several
	// providers may be equal. It returns no record for the empty id.
	FindProviderID(ctx context.Context, providerID string) ([]Record, error)
}

// MaxFound is the largest number of records that a [Finder] returns for one provider's id.
const MaxFound = 10

// Newest sorts records by creation, newest first, and returns at most [MaxFound] of them. It is for implementations of
// [Finder].
func Newest(found []Record) []Record {
	slices.SortFunc(found, func(a, b Record) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return found[:min(len(found), MaxFound)]
}

// Retainer is a store that can keep settled records for longer than their retention.
type Retainer interface {
	// Retain makes a settled record expire no sooner than the given time from now, by the store's clock, and returns
	// when it expires: up to a second later, because retentions are extended by whole seconds. It never shortens an
	// expiry. It returns [ErrNotFound] if there is no record, or only an expired one, and a [*FencedError] for a record
	// that is not settled, which does not expire. The retention grows with the expiry: if a retry completes the record,
	// the record is kept for the longer retention.
	Retain(ctx context.Context, id ID, d time.Duration) (expires time.Time, err error)
}
