package mysql

import (
	"context"

	"github.com/onceward/onceward/store"
)

// The statements by which records are found. Those of one provider's id are looked through up to a bound: of those with
// the same beginning, which is what the index holds, there are few.
const (
	selectHash     = `SELECT ` + columns + ` FROM @record r WHERE r.hash = ?`
	selectProvider = `SELECT ` + columns + ` FROM @record r WHERE r.provider_id = ?
		ORDER BY r.created_at DESC LIMIT 1000`
)

// FindHash implements [store.Finder].
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	found, err := s.summaries(ctx, selectHash, wanted[:])
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
	found, err := s.summaries(ctx, selectProvider, []byte(providerID))
	return store.Newest(found), err
}
