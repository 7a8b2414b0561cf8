package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
)

// The permissions of what the store creates: answers to payments are nobody else's business.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// createFile makes sure that the file exists with tight permissions, and returns its absolute path. SQLite gives the files
// that it puts beside it the same permissions.
func createFile(path string) (string, error) {
	if path == "" || strings.HasPrefix(path, ":") || strings.HasPrefix(path, "file:") {
		return "", fmt.Errorf("sqlite: %q is not the path of a file; for a store in memory use package store/memory", path)
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), dirMode); err != nil {
		return "", fmt.Errorf("sqlite: create the directory of %s: %w", path, err)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return "", fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	return file, f.Close()
}

// writerPragmas make each commit durable before it is acknowledged. The log may grow to 16 MiB before it is brought into
// the file, because a page that many commits change is then written once; the cache holds the pages that are hot.
const writerPragmas = `
	PRAGMA journal_mode = WAL;
	PRAGMA synchronous = FULL;
	PRAGMA foreign_keys = ON;
	PRAGMA wal_autocheckpoint = 4000;
	PRAGMA cache_size = -32768;
`

// readerPragmas keep a reader from writing.
const readerPragmas = `
	PRAGMA query_only = ON;
`

// connector opens connections of one kind for database/sql.
type connector struct {
	driver.Connector
	prepare func(ctx context.Context, conn sqlitedriver.Conn) (driver.Conn, error)
}

// newConnector returns a connector whose connections are made ready by prepare.
func newConnector(file string, prepare func(context.Context, sqlitedriver.Conn) (driver.Conn, error)) (*connector, error) {
	inner, err := new(sqlitedriver.SQLite).OpenConnector(file)
	if err != nil {
		return nil, err
	}
	return &connector{Connector: inner, prepare: prepare}, nil
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := c.prepare(ctx, opened.(sqlitedriver.Conn))
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return conn, nil
}

// openReadOnly opens the pool for business reads.
func openReadOnly(file string, busy time.Duration) (*sql.DB, error) {
	c, err := newConnector(file, func(_ context.Context, conn sqlitedriver.Conn) (driver.Conn, error) {
		return conn, configure(conn.Raw(), busy, readerPragmas)
	})
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

func configure(conn *sqlite3.Conn, busy time.Duration, pragmas string) error {
	if err := conn.BusyTimeout(busy); err != nil {
		return err
	}
	if err := conn.Exec(pragmas); err != nil {
		return unavailable(err)
	}
	return nil
}
