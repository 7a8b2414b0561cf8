package postgres

import (
	"context"

	"github.com/onceward/onceward/store"
)

const (
	// withProvider is the condition of the index on what providers call the effects of records. Most have no such id, and
	// are known by the byte that is its tag. It is short because every statement that writes a record prepares it anew.
	withProvider = `position('\x07'::bytea IN extra) > 0 AND @field(extra, 7) IS NOT NULL`
	// selectProvider goes by that index. The newest attempts come first, because a provider's id can be that of any number
	// of records.
	selectProvider = `SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
		WHERE ` + withProvider + ` AND sha256(@field(extra, 7)) = sha256($1)
		ORDER BY attempt DESC LIMIT $2`
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
	return s.summary(ctx, &r)
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	alike, err := collect(ctx, s.own, s.names.render(selectProvider), []any{[]byte(providerID), mostAlike}, scanRow)
	if err != nil {
		return nil, unavailable(err)
	}
	var found []store.Record
	for i := range alike {
		rec, err := s.summary(ctx, &alike[i])
		if err != nil {
			return nil, err
		}
		if rec.ID != (store.ID{}) {
			found = append(found, rec)
		}
	}
	return store.Newest(found), nil
}
