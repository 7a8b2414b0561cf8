package mysql

import (
	"context"
	"errors"
	"slices"

	"github.com/onceward/onceward/store"
)

// The statements by which records are found. Those of one provider's id are looked through up to a bound: there are
// few.
const (
	selectHash     = `SELECT ` + columns + ` FROM @record r WHERE r.hash = ?`
	selectProvider = `SELECT DISTINCT ` + columns + ` FROM @provider p JOIN @record r ON r.hash = p.hash
		WHERE p.name = ? ORDER BY r.created_at DESC LIMIT 1000`
)

// The statements about the ids of providers, which have a table of their own: few records carry one, and an index of
// them in the table of records would cost all others as well. An entry comes before the write by which the record
// carries the id, or in the same transaction, so that none is missing. One that is too much is of no use and does no
// harm. Entries name the attempt: when a record is gone its tokens are not used again, so that whatever is there with
// them can go at any time, also if the key has another record by then.
const (
	insertProvider = `INSERT INTO @provider (name, hash, attempt) VALUES (?, ?, ?)
		ON DUPLICATE KEY UPDATE attempt = ?`
	deleteProviders = `DELETE p FROM @provider p LEFT JOIN @record r ON r.hash = p.hash
		WHERE r.hash IS NULL AND p.attempt <= ? AND p.hash IN `
)

// newProvider is the id of a provider that a record is about to carry, or none if there is an entry of it.
func newProvider(before, after *store.Record) (name []byte, isNew bool) {
	if after.ProviderID == "" || after.ProviderID == before.ProviderID && after.Attempt == before.Attempt {
		return nil, false
	}
	return providerName(after.ProviderID), true
}

// noteProvider makes the entry of a record that is about to carry the id of a provider.
func (s *Store) noteProvider(ctx context.Context, before, after *store.Record) error {
	name, isNew := newProvider(before, after)
	if !isNew {
		return nil
	}
	hash := after.ID.HashBytes()
	_, err := s.execAgain(ctx, insertProvider, name, hash[:], after.Attempt, after.Attempt)
	if errors.Is(err, errUnanswered) {
		_, err = s.execAgain(ctx, insertProvider, name, hash[:], after.Attempt, after.Attempt) // which can be repeated
	}
	return err
}

// notingProvider is noteProvider in a transaction.
func (s *Store) notingProvider(before, after *store.Record) []statement {
	name, isNew := newProvider(before, after)
	if !isNew {
		return nil
	}
	hash := after.ID.HashBytes()
	return []statement{stmt(s.render(insertProvider), name, hash[:], after.Attempt, after.Attempt)}
}

// forgetProvider removes the entries of records that are gone, with tokens up to the largest. Should it fail, an entry
// stays that does no harm: the records are removed all the same, and that is what the caller is told.
func (s *Store) forgetProvider(ctx context.Context, largest int64, hashes ...any) {
	_, _ = s.execOnce(ctx, s.renderOnce(deleteProviders+marks(len(hashes))), append([]any{largest}, hashes...)...)
}

// FindHash implements [store.Finder].
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	found, damaged, err := s.readable(ctx, selectHash, wanted[:])
	switch {
	case err != nil:
		return store.Record{}, err
	case damaged > 0:
		return store.Record{}, errDamaged
	case len(found) == 0:
		return store.Record{}, store.ErrNotFound
	}
	return found[0], nil
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	found, err := s.summaries(ctx, selectProvider, providerName(providerID))
	found = slices.DeleteFunc(found, func(rec store.Record) bool { return rec.ProviderID != providerID })
	return store.Newest(found), err
}
