package store

import (
	"context"
	"slices"
	"time"
)

// Finder is a store that finds a record by what others know of it, by an index: a person who has a log line, or the id
// that a provider gave, finds the operation in a store of any size. The records come without the bodies of their
// responses and the data they carry, as those of a [Lister] do.
type Finder interface {
	// FindHash returns the record whose ID has that hash, as [ID.Hash] writes it, or [ErrNotFound], also for a text that
	// is no hash: see [ParseHash].
	FindHash(ctx context.Context, hash string) (Record, error)
	// FindProviderID returns the records that carry an id that a provider gave, the newest first, [MaxFound] at most: ids
	// of several providers may be equal. No record carries the empty one.
	FindProviderID(ctx context.Context, providerID string) ([]Record, error)
}

// MaxFound is the most records that a [Finder] returns for one id of a provider.
const MaxFound = 10

// Newest orders records by when they were made, the newest first, and returns [MaxFound] of them at most, for those who
// implement a [Finder].
func Newest(found []Record) []Record {
	slices.SortFunc(found, func(a, b Record) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return found[:min(len(found), MaxFound)]
}

// Retainer is a store whose settled records can be kept for longer than their retention said.
type Retainer interface {
	// Retain makes a settled record expire no sooner than the given time from now, by the store's clock, and returns when
	// it does: up to a second later, because what it adds to a retention makes whole seconds of it. It never makes one
	// expire sooner. It returns [ErrNotFound] if there is none, or none but one past its expiry, and a [*FencedError] for
	// one that is not settled, which does not expire. The retention grows with the expiry: if the record can be retried,
	// what it comes to then is kept for as long.
	Retain(ctx context.Context, id ID, d time.Duration) (expires time.Time, err error)
}
