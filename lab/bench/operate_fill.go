package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// copier makes copies of a record that a store has written: each is of another key, with the provider's id that belongs
// to it, and is what the store would have written for it.
type copier struct {
	template store.ID
	// last is the key of the latest copy, and middle that of one among the others.
	last, middle store.ID
	made, wanted int
}

// next begins the next copy.
func (c *copier) next() {
	c.last = store.ID{Scope: c.template.Scope, Key: newKey()}
	if c.made++; c.made == c.wanted/2 {
		c.middle = c.last
	}
}

// of returns what stands in the copy where the template has this.
func (c *copier) of(column []byte) []byte {
	column = bytes.ReplaceAll(column, packedKey(c.template), packedKey(c.last))
	return bytes.ReplaceAll(column, []byte(providerID(c.template.Key)), []byte(providerID(c.last.Key)))
}

// packedKey is the key, a UUID, as stores keep it: in the last sixteen bytes of the encoded ID.
func packedKey(id store.ID) []byte {
	b := id.AppendBinary(nil)
	return b[len(b)-16:]
}

// cloneInPostgres copies a record n times, by COPY, and returns the ID of one of the copies.
func cloneInPostgres(ctx context.Context, site *pgSite, template *store.ID, n int) (store.ID, error) {
	one, err := site.pool.Query(ctx, `SELECT * FROM onceward_record WHERE state = 20`)
	if err != nil {
		return store.ID{}, err
	}
	record, err := pgx.CollectExactlyOneRow(one, pgx.RowToMap)
	if err != nil {
		return store.ID{}, err
	}
	c := &copier{template: *template, wanted: n}
	columns := slices.Sorted(maps.Keys(record))
	rows := pgx.CopyFromFunc(func() (row []any, err error) {
		if c.made == n {
			return nil, nil
		}
		c.next()
		record["id"], record["key_uuid"] = c.last.HashBytes(), [16]byte(packedKey(c.last))
		record["provider_id"] = []byte(providerID(c.last.Key))
		for _, column := range columns {
			row = append(row, record[column])
		}
		return row, nil
	})
	if _, err = site.pool.CopyFrom(ctx, pgx.Identifier{"onceward_record"}, columns, rows); err != nil {
		return c.middle, err
	}
	_, err = site.pool.Exec(ctx, `VACUUM ANALYZE onceward_record`)
	return c.middle, err
}

// cloneInSQLite copies a record n times, in one transaction, and returns the ID of one of the copies.
func cloneInSQLite(ctx context.Context, path string, template *store.ID, n int) (id store.ID, err error) {
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var state, due int64
	var record []byte
	err = db.QueryRowContext(ctx, `SELECT state, due, record FROM onceward_record WHERE state = 20`).
		Scan(&state, &due, &record)
	if err != nil {
		return id, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return id, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	insert, err := tx.PrepareContext(ctx, `INSERT INTO onceward_record (hash, id, state, due, provider_id, record)
		VALUES (?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return id, err
	}
	c := &copier{template: *template, wanted: n}
	for range n {
		c.next()
		hash := c.last.HashBytes()
		_, err := insert.ExecContext(ctx, hash[:], c.last.AppendBinary(nil), state, due, []byte(providerID(c.last.Key)),
			c.of(record))
		if err != nil {
			return id, err
		}
	}
	if err := tx.Commit(); err != nil {
		return id, err
	}
	_, err = db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`) // a service that runs has long done it
	return c.middle, err
}

// writeInRedis writes n records through the store, which takes as long as copying would: its values are many keys each.
func writeInRedis(ctx context.Context, url string, n int) (id store.ID, err error) {
	s, err := storeurl.OpenStore(ctx, url)
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	keys := newKeys(n)
	next := make(chan string, n)
	for _, key := range keys {
		next <- key
	}
	_, err = repeatTimes(manyCallers, n, func(ctx context.Context) error { return writeCompleted(ctx, s, <-next) })
	if err != nil {
		return id, fmt.Errorf("fill Redis: %w", err)
	}
	return store.ID{Scope: "alice", Key: keys[n/2]}, nil
}
