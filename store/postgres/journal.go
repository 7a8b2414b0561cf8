package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/sqljournal"
)

var _ client.Journal = (*Journal)(nil)

// Journal is a [client.Journal] in PostgreSQL: durable operations of a caller, in tables of their own beside those of
// the application. Any number of nodes may share it.
type Journal struct {
	*sqljournal.Journal
	close func() error
}

// OpenJournal connects to the database at a URL, and creates the journal's tables or brings them up to date.
// [WithSchema] and [WithTablePrefix] say where they are; other options are not for journals.
func OpenJournal(ctx context.Context, url string, options ...Option) (*Journal, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("postgres: open the journal: %w", err)
	}
	j, err := NewJournal(ctx, pool, options...)
	if err != nil {
		pool.Close()
		return nil, err
	}
	closeDB := j.close
	j.close = func() error {
		defer pool.Close()
		return closeDB()
	}
	return j, nil
}

// NewJournal is [OpenJournal] on connections of a pool, which stays the caller's to close, after the journal.
func NewJournal(ctx context.Context, pool *pgxpool.Pool, options ...Option) (*Journal, error) {
	db := stdlib.OpenDBFromPool(pool)
	j, err := NewJournalSQL(ctx, db, options...)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	j.close = db.Close
	return j, nil
}

// NewJournalSQL is [OpenJournal] on connections of db, which stays the caller's to close.
func NewJournalSQL(ctx context.Context, db *sql.DB, options ...Option) (*Journal, error) {
	dialect, err := journalIn(ctx, db, options)
	if err != nil {
		return nil, fmt.Errorf("postgres: open the journal: %w", err)
	}
	inner, err := sqljournal.Open(ctx, sqljournal.Config{
		Dialect: dialect, Read: db,
		Write: func(ctx context.Context, f func(q sqljournal.Querier) error) error {
			return repeatUndone(ctx, func() error { return f(db) })
		},
		Update: func(ctx context.Context, f func(tx *sql.Tx) error) error {
			return repeatOn(ctx, waitsForMigration, func() error { return inSQLTx(ctx, db, f) })
		},
	})
	if err != nil {
		return nil, fmt.Errorf("postgres: open the journal: %w", err)
	}
	return &Journal{Journal: inner, close: func() error { return nil }}, nil
}

// inSQLTx does something in a transaction of its own.
func inSQLTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it does nothing after a commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// journalLock keeps other processes from making the tables at the same time.
const journalLock = `SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))`

// journalIn finds out where the tables are, or are to be.
func journalIn(ctx context.Context, db *sql.DB, chosen []Option) (sqljournal.Dialect, error) {
	o := defaults()
	for _, option := range chosen {
		option(&o)
	}
	where := names{schema: o.schema, prefix: o.prefix}
	if where.schema == "" {
		err := db.QueryRowContext(ctx, `SELECT coalesce(current_schema(), '')`).Scan(&where.schema)
		if err != nil {
			return sqljournal.Dialect{}, err
		}
	}
	return journalDialect(where), where.check()
}

// journalDialect is how PostgreSQL says it. Its clock goes on within a transaction.
func journalDialect(where names) sqljournal.Dialect {
	versions := where.render("@journal_schema")
	return sqljournal.Dialect{
		Table: where.render("@journal"), Versions: versions,
		Now:  "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
		Skip: "FOR UPDATE SKIP LOCKED", Bytes: "BYTEA", Text: `TEXT COLLATE "C"`,
		Lock:   fmt.Sprintf(journalLock, literal(where.migrationLock())),
		Exists: "SELECT 1 WHERE to_regclass(" + literal(versions) + ") IS NOT NULL",
	}
}

// JournalSchema is what creates the tables of a journal, for those who do that by hand before they open it. Without a
// prefix it uses onceward_.
func JournalSchema(schema, prefix string) (string, error) {
	where := names{schema: schema, prefix: prefix}
	if prefix == "" {
		where.prefix = defaultPrefix
	}
	if err := where.check(); err != nil {
		return "", err
	}
	return journalDialect(where).Schema(), nil
}

// Enqueue is [client.Enqueue] in a transaction of pgx.
func Enqueue(ctx context.Context, journal *Journal, tx pgx.Tx, request *http.Request) (key string, err error) {
	app, err := ofPgx(tx)
	if err != nil {
		return "", err
	}
	o, err := client.NewOperation(request)
	if err != nil {
		return "", err
	}
	statement, args := journal.Insert(o)
	added, err := app.exec(ctx, statement, args...)
	if err == nil && added == 0 {
		err = client.ErrExists
	}
	return o.Key, err
}

// Close closes what the journal has opened.
func (j *Journal) Close() error { return j.close() }
