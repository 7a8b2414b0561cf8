package postgres

import (
	"context"

	"github.com/onceward/onceward/store"
)

const (
	// selectProvider uses the index on the provider IDs of records. The newest attempts come first, because any number
	// of records can have the same provider ID.
	selectProvider = `SELECT id, ` + columns + ` FROM @record
		WHERE provider_id IS NOT NULL AND sha256(provider_id) = sha256($1) ORDER BY attempt DESC LIMIT $2`
)

// mostAlike is the most records with one provider ID that are read.
const mostAlike = 100

// FindHash implements [store.Finder]. It uses the primary key.
func (s *Store) FindHash(ctx context.Context, hash string) (rec store.Record, err error) {
	r := row{}
	if r.id, err = store.ParseHash(hash); err != nil {
		return rec, err
	}
	if err := s.ready(); err != nil {
		return rec, err
	}
	if _, err := s.read(ctx, &r); err != nil {
		return rec, err
	}
	return s.summary(ctx, &r), nil
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	alike, err := collect(ctx, s.own, s.render(selectProvider), []any{[]byte(providerID), mostAlike}, scanRow)
	if err != nil {
		return nil, unavailable(err)
	}
	var found []store.Record
	for i := range alike {
		found = append(found, s.summary(ctx, &alike[i]))
	}
	return store.Newest(found), nil
}
