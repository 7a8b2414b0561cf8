package postgres

import (
	"context"

	"github.com/onceward/onceward/store"
)

const (
	// selectProvider goes by the index on what providers call the effects of records. The newest attempts come first, because
	// a provider's id can be that of any number of records.
	selectProvider = `SELECT id, ` + columns + ` FROM @record
		WHERE provider_id IS NOT NULL AND sha256(provider_id) = sha256($1) ORDER BY attempt DESC LIMIT $2`
)

// mostAlike is how many records with one provider's id are looked at.
const mostAlike = 100

// FindHash implements [store.Finder], by the primary key.
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
