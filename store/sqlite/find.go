package sqlite

import (
	"context"

	"github.com/onceward/onceward/store"
)

// The statements that find a record by its hash or by its provider's ID. Each uses an index.
const (
	selectHash     = `SELECT id, record, state FROM onceward_record WHERE hash = ?1`
	selectProvider = `SELECT id, record, state FROM onceward_record WHERE provider_id = ?1
		ORDER BY rowid DESC LIMIT 1000`
)

// FindHash implements [store.Finder].
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	found, err := s.summaries(ctx, selectHash, []any{wanted[:]})
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Record{}, err
	}
	return found[0], nil
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	found, err := s.summaries(ctx, selectProvider, []any{[]byte(providerID)})
	return store.Newest(found), err
}
