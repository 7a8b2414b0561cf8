package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/store"
)

const (
	// withProvider is the condition of the index on what providers call the effects of records.
	withProvider = `CASE length(extra) WHEN 0 THEN false WHEN 6 THEN get_byte(extra, 0) <> 13
		WHEN 10 THEN get_byte(extra, 0) <> 1 WHEN 16 THEN get_byte(extra, 0) <> 1 OR get_byte(extra, 10) <> 13 ELSE true END
		AND position('\x07'::bytea IN extra) > 0 AND @field(extra, 7) IS NOT NULL`
	// selectProvider goes by that index. The newest attempts come first, because a provider's id can be that of any number
	// of records.
	selectProvider = `SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
		WHERE ` + withProvider + ` AND sha256(@field(extra, 7)) = sha256($1)
		ORDER BY attempt DESC LIMIT $2`
	// indexProviders makes that index as the third migration does, while others write. Its name takes no schema: it is in
	// that of its table.
	indexProviders = `CREATE INDEX CONCURRENTLY IF NOT EXISTS %s ON @record (sha256(@field(extra, 7)))
		WHERE ` + withProvider
)

// mostAlike is how many records with one provider's id are looked at.
const mostAlike = 100

// selectRequests reads what the hashes of all records can be computed from, and nothing else of them.
const selectRequests = `SELECT id, request FROM @record WHERE state > 0`

// FindHash implements [store.Finder]: by the primary key, or, in tables of an earlier version, whose names have a
// secret in them, by looking through all records, a second or two for a million.
func (s *Store) FindHash(ctx context.Context, hash string) (rec store.Record, err error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return rec, err
	}
	if err := s.ready(); err != nil {
		return rec, err
	}
	r := row{id: wanted}
	if len(s.naming.secret) > 0 {
		if r.id, err = s.nameOfHash(ctx, wanted); err != nil {
			return rec, err
		}
	}
	if _, err := s.read(ctx, &r); err != nil {
		return rec, err
	}
	return s.summary(ctx, &r)
}

// nameOfHash looks through all records for the name of the one whose ID has that hash. It is one statement, in the
// order of the table, and the caller's context bounds it, not what a database allows the statements of requests. The
// hashes are computed here because SQL takes several times as long.
func (s *Store) nameOfHash(ctx context.Context, wanted [16]byte) (found [16]byte, err error) {
	if err := s.primary(ctx); err != nil {
		return found, err
	}
	err = pgx.BeginTxFunc(ctx, s.own, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, s.names.render(selectRequests))
		if err != nil {
			return err
		}
		var name [16]byte
		var asked []byte
		_, err = pgx.ForEachRow(rows, []any{&name, (*pgtype.DriverBytes)(&asked)}, func() error {
			if r, err := parseRequest(asked); err == nil && r.id.HashBytes() == wanted {
				found = name
			}
			return nil
		})
		return err
	})
	if err == nil && found == [16]byte{} {
		return found, store.ErrNotFound
	}
	return found, unavailable(err)
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
