package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	// The driver that the store uses too: the rivals differ in what they do with it.
	_ "github.com/ncruces/go-sqlite3/driver"
)

// The table of a textbook, and the statements that go with it.
const (
	createKeys = `CREATE TABLE idempotency_key (
		id INTEGER PRIMARY KEY,
		scope TEXT NOT NULL,
		key TEXT NOT NULL,
		operation TEXT NOT NULL,
		request_hash BLOB NOT NULL,
		status TEXT NOT NULL,
		response_code INTEGER,
		response_headers TEXT,
		response_body BLOB,
		created_at INTEGER NOT NULL,
		expires_at INTEGER NOT NULL,
		UNIQUE (scope, key)) STRICT;
	CREATE INDEX idempotency_key_expires ON idempotency_key (expires_at)`
	selectKey = `SELECT status, request_hash, response_code, response_headers, response_body FROM idempotency_key
		WHERE scope = ? AND key = ?`
	insertKey = `INSERT INTO idempotency_key (scope, key, operation, request_hash, status, created_at, expires_at)
		VALUES (?, ?, ?, ?, 'in_progress', ?, ?)`
	completeKey = `UPDATE idempotency_key SET status = 'completed', response_code = ?, response_headers = ?, response_body = ?
		WHERE scope = ? AND key = ? AND status = 'in_progress'`
)

// poolSize is what a careful person sets a pool to.
const poolSize = 16

// responseHeaders is how a textbook stores a header.
var responseHeaders, _ = json.Marshal(http.Header{"Content-Type": {contentType}, "Location": {location}})

// openRival opens a pool with the durability and the other settings of the store, whose transactions lock when they
// begin: without that they would fail under load instead of waiting.
func openRival(ctx context.Context, file string, connections int, schema string) (*sql.DB, error) {
	settings := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(60000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)",
		"wal_autocheckpoint(4000)", "cache_size(-32768)",
	}}
	db, err := sql.Open("sqlite3", "file:"+file+"?"+settings.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// statements run by text, or prepared.
type statements interface {
	query(ctx context.Context, tx *sql.Tx, text string, args ...any) *sql.Row
	exec(ctx context.Context, tx *sql.Tx, text string, args ...any) (sql.Result, error)
}

// byText sends each statement as it is written, as most code does.
type byText struct{}

func (byText) query(ctx context.Context, tx *sql.Tx, text string, args ...any) *sql.Row {
	return tx.QueryRowContext(ctx, text, args...)
}

func (byText) exec(ctx context.Context, tx *sql.Tx, text string, args ...any) (sql.Result, error) {
	return tx.ExecContext(ctx, text, args...)
}

// prepared holds statements by their text.
type prepared map[string]*sql.Stmt

func prepare(ctx context.Context, db *sql.DB, texts ...string) (prepared, error) {
	all := make(prepared)
	for _, text := range texts {
		stmt, err := db.PrepareContext(ctx, text)
		if err != nil {
			return nil, err
		}
		all[text] = stmt
	}
	return all, nil
}

func (p prepared) query(ctx context.Context, tx *sql.Tx, text string, args ...any) *sql.Row {
	return tx.StmtContext(ctx, p[text]).QueryRowContext(ctx, args...)
}

func (p prepared) exec(ctx context.Context, tx *sql.Tx, text string, args ...any) (sql.Result, error) {
	return tx.StmtContext(ctx, p[text]).ExecContext(ctx, args...)
}

// openNaivePool is the textbook: a pool, a transaction to look and insert, and a transaction to complete.
func openNaivePool(ctx context.Context, file string) (*arena, error) {
	db, err := openRival(ctx, file, poolSize, createKeys)
	if err != nil {
		return nil, err
	}
	return textbook(db, byText{}), nil
}

// openSingleWriter is the textbook improved: one connection, so that no writer fights for the lock, and prepared
// statements.
func openSingleWriter(ctx context.Context, file string) (*arena, error) {
	db, err := openRival(ctx, file, 1, createKeys)
	if err != nil {
		return nil, err
	}
	s, err := prepare(ctx, db, selectKey, insertKey, completeKey)
	return textbook(db, s), err
}

func textbook(db *sql.DB, s statements) *arena {
	return &arena{
		operate: func(ctx context.Context) error {
			key := newKey()
			if err := inTx(ctx, db, func(tx *sql.Tx) error { return claim(ctx, tx, s, key) }); err != nil {
				return err
			}
			return inTx(ctx, db, func(tx *sql.Tx) error { return complete(ctx, tx, s, key) })
		},
		close: db.Close,
	}
}

func inTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func claim(ctx context.Context, tx *sql.Tx, s statements, key string) error {
	var (
		status     string
		hash, body []byte
		code       sql.NullInt64
		headers    sql.NullString
	)
	err := s.query(ctx, tx, selectKey, "alice", key).Scan(&status, &hash, &code, &headers, &body)
	if !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("a new key was found to be %q: %w", status, err)
	}
	now := time.Now()
	_, err = s.exec(ctx, tx, insertKey, "alice", key, "POST /payments", []byte(key)[:32],
		now.UnixMicro(), now.Add(24*time.Hour).UnixMicro())
	return err
}

func complete(ctx context.Context, tx *sql.Tx, s statements, key string) error {
	result, err := s.exec(ctx, tx, completeKey, http.StatusCreated, string(responseHeaders), []byte(answer), "alice", key)
	if err != nil {
		return err
	}
	if changed, err := result.RowsAffected(); err != nil || changed != 1 {
		return fmt.Errorf("%d rows were completed: %w", changed, err)
	}
	return nil
}

// openInsertSingle is the business insert without protection, in a transaction of its own, by one writer.
func openInsertSingle(ctx context.Context, file string) (*arena, error) {
	return openInsert(ctx, file, 1)
}

// openInsertPool is the same from a pool.
func openInsertPool(ctx context.Context, file string) (*arena, error) {
	return openInsert(ctx, file, poolSize)
}

func openInsert(ctx context.Context, file string, connections int) (*arena, error) {
	db, err := openRival(ctx, file, connections, createBusiness)
	if err != nil {
		return nil, err
	}
	s, err := prepare(ctx, db, insertBusiness)
	return &arena{
		operate: func(ctx context.Context) error {
			return inTx(ctx, db, func(tx *sql.Tx) error {
				_, err := s.exec(ctx, tx, insertBusiness, businessRow...)
				return err
			})
		},
		close: db.Close,
	}, err
}
