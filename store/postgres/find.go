package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

// selectProvider goes by the index on what providers call the effects of records; its condition is that of the index. The
// newest attempts come first, because a provider's id can be that of any number of records.
const selectProvider = `SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
	WHERE CASE length(extra) WHEN 0 THEN false WHEN 6 THEN get_byte(extra, 0) <> 13 WHEN 10 THEN get_byte(extra, 0) <> 1
		WHEN 16 THEN get_byte(extra, 0) <> 1 OR get_byte(extra, 10) <> 13 ELSE true END
		AND position('\x07'::bytea IN extra) > 0 AND @field(extra, 7) IS NOT NULL
		AND sha256(@field(extra, 7)) = sha256($1)
	ORDER BY attempt DESC LIMIT $2`

// mostAlike is how many records with one provider's id are looked at.
const mostAlike = 100

// FindHash implements [store.Finder]: by the primary key, or, in tables of an earlier version, whose names have a secret in
// them, by looking through all records.
func (s *Store) FindHash(ctx context.Context, hash string) (rec store.Record, err error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return rec, err
	}
	if err := s.ready(); err != nil {
		return rec, err
	}
	if len(s.naming.secret) > 0 {
		return s.walkToHash(ctx, wanted)
	}
	r := row{id: wanted}
	if _, err := s.read(ctx, &r); err != nil {
		return rec, err
	}
	return s.summary(ctx, &r)
}

// walkToHash looks through all records for the one whose ID has that hash.
func (s *Store) walkToHash(ctx context.Context, wanted [16]byte) (store.Record, error) {
	for f := (store.Filter{}); ; {
		page, err := s.List(ctx, f)
		if err != nil {
			return store.Record{}, err
		}
		for i := range page {
			if page[i].HashBytes() == wanted {
				return page[i], nil
			}
		}
		if len(page) < store.MaxPage {
			return store.Record{}, store.ErrNotFound
		}
		f.After = page[len(page)-1].ID
	}
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	if err := s.primary(ctx); err != nil {
		return nil, err
	}
	rows, err := s.own.Query(ctx, s.names.render(selectProvider), []byte(providerID), mostAlike)
	if err != nil {
		return nil, unavailable(err)
	}
	alike, err := pgx.CollectRows(rows, scanRow)
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
