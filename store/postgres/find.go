package postgres

import (
	"context"
	"encoding/hex"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/onceward/onceward/store"
)

const (
	// withProvider is the condition of the index on what providers call the effects of records. Most have no such id, and
	// are known by the byte that is its tag. It is short because every statement that writes a record prepares it anew.
	withProvider = `position('\x07'::bytea IN extra) > 0 AND @field(extra, 7) IS NOT NULL`
	// withProviderBefore is that of the index which the third migration makes, and the sixth replaces.
	withProviderBefore = `CASE length(extra) WHEN 0 THEN false WHEN 6 THEN get_byte(extra, 0) <> 13
		WHEN 10 THEN get_byte(extra, 0) <> 1 WHEN 16 THEN get_byte(extra, 0) <> 1 OR get_byte(extra, 10) <> 13 ELSE true END
		AND ` + withProvider
	// selectProvider goes by that index. The newest attempts come first, because a provider's id can be that of any number
	// of records.
	selectProvider = `SELECT id, attempt, due, retention, answer, state, request, extra FROM @record
		WHERE ` + withProvider + ` AND sha256(@field(extra, 7)) = sha256($1)
		ORDER BY attempt DESC LIMIT $2`
	// indexedProviders is how that index is made, behind the name of its table.
	indexedProviders       = `(sha256(@field(extra, 7))) WHERE ` + withProvider
	indexedProvidersBefore = `(sha256(@field(extra, 7))) WHERE ` + withProviderBefore
)

// mostAlike is how many records with one provider's id are looked at.
const mostAlike = 100

// selectRequests reads what the hashes of all records can be computed from, and nothing else of them.
const selectRequests = `SELECT id, request FROM @record WHERE state > 0`

// selectName finds out under which name the record of a hash is.
const selectName = `SELECT @record_id($1)`

// FindHash implements [store.Finder]: by the primary key, under the hash or, where names begin with a time, under it in
// each time that there is. In tables of an earlier version, whose names have a secret in them, it looks through all
// records, a second or two for a million.
func (s *Store) FindHash(ctx context.Context, hash string) (rec store.Record, err error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return rec, err
	}
	if err := s.ready(); err != nil {
		return rec, err
	}
	r := row{id: wanted}
	switch {
	case len(s.naming.secret) > 0:
		r.id, err = s.nameOfHash(ctx, wanted)
	case s.naming.ordered:
		r.id, err = s.nameInTime(ctx, wanted)
	}
	if err != nil {
		return rec, err
	}
	if _, err := s.read(ctx, &r); err != nil {
		return rec, err
	}
	return s.summary(ctx, &r)
}

// nameInTime asks the server for the name of the record whose ID has that hash. How long that takes depends on how many
// times there are, and the caller's context bounds it, not what a database allows the statements of requests.
func (s *Store) nameInTime(ctx context.Context, wanted [16]byte) (found [16]byte, err error) {
	if err := s.primary(ctx); err != nil {
		return found, err
	}
	var name pgtype.UUID
	err = s.readPatiently(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.names.render(selectName), hex.EncodeToString(wanted[:])).Scan(&name)
	})
	if err == nil && !name.Valid {
		return found, store.ErrNotFound
	}
	return name.Bytes, unavailable(err)
}

// readPatiently reads in a transaction whose statements only the caller's context bounds.
func (s *Store) readPatiently(ctx context.Context, read func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.own, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		return read(tx)
	})
}

// nameOfHash looks through all records for the name of the one whose ID has that hash. It is one statement, in the
// order of the table, and the caller's context bounds it, not what a database allows the statements of requests. The
// hashes are computed here because SQL takes several times as long.
func (s *Store) nameOfHash(ctx context.Context, wanted [16]byte) (found [16]byte, err error) {
	if err := s.primary(ctx); err != nil {
		return found, err
	}
	err = s.readPatiently(ctx, func(tx pgx.Tx) error {
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
