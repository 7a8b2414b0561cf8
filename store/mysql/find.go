package mysql

import (
	"context"
	"errors"
	"slices"

	"github.com/onceward/onceward/store"
)

// The statements that find records. selectProvider is bounded, because few records carry the same provider's ID.
const (
	selectHash     = `SELECT ` + columns + ` FROM @record r WHERE r.hash = ?`
	selectProvider = `SELECT DISTINCT ` + columns + ` FROM @provider p JOIN @record r ON r.hash = p.hash
		WHERE p.name = ? ORDER BY r.created_at DESC LIMIT 1000`
)

// The statements for the IDs of providers. The IDs have a table of their own: few records carry one,
// and an index in the table of records would slow down all records. An entry is written before the
// record carries the ID, or in the same transaction, so that no entry is missing. An entry without a
// record does no harm. Entries name the attempt: the tokens of a removed record are never used again,
// so entries with these tokens can be removed at any time, even while the key gets another record.
const (
	insertProvider = `INSERT INTO @provider (name, hash, attempt) VALUES (?, ?, ?)
		ON DUPLICATE KEY UPDATE attempt = ?`
	deleteProviders = `DELETE p FROM @provider p LEFT JOIN @record r ON r.hash = p.hash
		WHERE r.hash IS NULL AND p.attempt <= ? AND p.hash IN `
)

// newProvider returns the name of the provider's ID that a record
// is about to carry, and whether an entry has to be added.
func newProvider(before, after *store.Record) (name []byte, isNew bool) {
	if after.ProviderID == "" || after.ProviderID == before.ProviderID && after.Attempt == before.Attempt {
		return nil, false
	}
	return providerName(after.ProviderID), true
}

// noteProvider adds an entry for a record that is about to carry the ID of a provider.
func (s *Store) noteProvider(ctx context.Context, before, after *store.Record) error {
	name, isNew := newProvider(before, after)
	if !isNew {
		return nil
	}
	hash := after.ID.HashBytes()
	_, err := s.execAgain(ctx, insertProvider, name, hash[:], after.Attempt, after.Attempt)
	if errors.Is(err, errUnanswered) {
		_, err = s.execAgain(ctx, insertProvider, name, hash[:], after.Attempt, after.Attempt) // it can be repeated
	}
	return err
}

// notingProvider returns the statements that do the same as noteProvider in a transaction.
func (s *Store) notingProvider(before, after *store.Record) []statement {
	name, isNew := newProvider(before, after)
	if !isNew {
		return nil
	}
	hash := after.ID.HashBytes()
	return []statement{stmt(s.render(insertProvider), name, hash[:], after.Attempt, after.Attempt)}
}

// forgetProvider removes the entries of removed records, with tokens up to largest. It ignores errors: the records are
// removed anyway, and an entry that stays does no harm.
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
