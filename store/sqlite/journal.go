package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/internal/sqljournal"
)

var _ client.Journal = (*Journal)(nil)

// Journal is a [client.Journal] in an SQLite file: durable operations of a caller, in tables of their own beside those
// of the application. Several processes on one machine may open the same file.
type Journal struct {
	*sqljournal.Journal
	db     *sql.DB
	update func(ctx context.Context, f func(tx *sql.Tx) error) error
	close  func() error
}

// journalDialect is how SQLite says it. Its clock counts milliseconds.
var journalDialect = sqljournal.Dialect{
	Table: "onceward_journal", Versions: "onceward_journal_schema",
	Now: "CAST(unixepoch('subsec') * 1000000 AS INTEGER)", Bytes: "BLOB", Text: "TEXT",
	Exists: `SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'onceward_journal_schema'`,
}

// JournalSchema is what creates the tables of a journal, for those who do that by hand before they open it.
func JournalSchema() string { return journalDialect.Schema() }

// journalConnections are enough for one that writes and a few that look.
const journalConnections = 4

// OpenJournal opens the journal in the file at path, creates the file and its directory if they do not exist, readable
// for their owner only, and creates its tables or brings them up to date. The application's own tables may be in the
// same file: write to them with [Journal.Update].
func OpenJournal(ctx context.Context, path string) (*Journal, error) {
	file, err := createFile(path)
	if err != nil {
		return nil, err
	}
	address := "file:" + (&url.URL{Path: file}).EscapedPath() + "?_txlock=immediate"
	db, err := sqlitedriver.Open(address, func(conn *sqlite3.Conn) error {
		if err := configure(conn, defaultBusyTimeout, writerPragmas); err != nil {
			return err
		}
		return requireLog(conn)
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	db.SetMaxOpenConns(journalConnections)
	j := &Journal{db: db, close: db.Close}
	turn := make(writerTurn, 1)
	j.update = func(ctx context.Context, f func(tx *sql.Tx) error) error {
		return turn.take(ctx, func() error { return inTx(ctx, db, f) })
	}
	j.Journal, err = sqljournal.Open(ctx, sqljournal.Config{
		Dialect: journalDialect, Read: db, Update: j.update,
		Write: func(ctx context.Context, f func(q sqljournal.Querier) error) error {
			return turn.take(ctx, func() error { return f(db) })
		},
	})
	if err == nil {
		err = tighten(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %s: %w", path, unavailable(err)), db.Close())
	}
	return j, nil
}

// writerTurn lets one write at a time: waiting for each other is fair, asking SQLite for its lock again and again is
// not.
type writerTurn chan struct{}

// take runs f when it is its turn, unless the context ends before that.
func (t writerTurn) take(ctx context.Context, f func() error) error {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t }()
	return f()
}

// inTx runs f in a transaction.
func inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = tx.Rollback() }() // it does nothing after a commit
	if err := f(tx); err != nil {
		return err
	}
	return unavailable(tx.Commit())
}

// Journal returns the journal in the file of the store, so that a transactional handler can enqueue operations in its
// own transaction, [onceward.Tx]. It creates its tables or brings them up to date. It lasts as long as the store.
func (s *Store) Journal(ctx context.Context) (*Journal, error) {
	j := &Journal{db: s.DB(), update: s.Update, close: func() error { return nil }}
	var err error
	j.Journal, err = sqljournal.Open(ctx, sqljournal.Config{
		Dialect: journalDialect, Read: s.DB(), Update: s.Update,
		Write: func(ctx context.Context, f func(q sqljournal.Querier) error) error {
			return s.Update(ctx, func(tx *sql.Tx) error { return f(tx) })
		},
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: the journal: %w", err)
	}
	return j, nil
}

// Update runs f in a transaction, and commits if it returns nil. It is for the application's writes that belong to an
// operation: [client.Enqueue] in it, and both are there or neither. Other writes wait for f, for as long as it takes.
func (j *Journal) Update(ctx context.Context, f func(tx *sql.Tx) error) error {
	return j.update(ctx, f)
}

// DB is for reading the application's own tables.
func (j *Journal) DB() *sql.DB { return j.db }

// Close closes the file.
func (j *Journal) Close() error { return j.close() }
