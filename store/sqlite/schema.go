package sqlite

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	createSchema = `CREATE TABLE IF NOT EXISTS onceward_schema (
		version    INTEGER PRIMARY KEY,
		applied_at TEXT NOT NULL
	) STRICT`
	selectVersion = `SELECT coalesce(max(version), 0) FROM onceward_schema`
	selectSchema  = `SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onceward_schema'`
)

// migrations are the files that make the tables.
type migrations struct{ sqltx.Migrations }

// ownMigrations returns the migrations of this program.
func ownMigrations() migrations {
	return migrations{sqltx.NewMigrations(sqltx.MigrationFiles(migrationFiles))}
}

// Migrate creates the file and its tables, or brings them up to
// date. [Open] does the same unless [WithManualMigration] is set.
func Migrate(ctx context.Context, path string) error {
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	return s.Close()
}

// Status compares the version of the tables in a file with the version that this program needs. It writes nothing. If
// the file does not exist, the status is Absent.
func Status(ctx context.Context, path string) (store.SchemaStatus, error) {
	all := ownMigrations()
	status := store.SchemaStatus{Place: path, Wanted: all.Version(), Pending: all.Names}
	file, err := filePath(path)
	if err != nil {
		return status, err
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		status.Absent = true
		return status, ctx.Err()
	}
	address, err := readOnlyAddress(path)
	if err != nil {
		return status, err
	}
	conn, err := sqlite3.OpenContext(ctx, address)
	if err != nil {
		return status, unavailable(err)
	}
	if err = conn.BusyTimeout(defaultBusyTimeout); err == nil {
		status, err = all.status(conn, path)
	}
	return status, errors.Join(err, conn.Close())
}

// status reads the version of the tables.
func (m *migrations) status(conn *sqlite3.Conn, place string) (store.SchemaStatus, error) {
	status := store.SchemaStatus{Place: place, Wanted: m.Version()}
	there, err := exists(conn, selectSchema)
	if err == nil && there {
		err = query(conn, selectVersion, nil, func(stmt *sqlite3.Stmt) error {
			status.Version = stmt.ColumnInt(0)
			return nil
		})
	}
	status.Pending = m.After(status.Version)
	return status, unavailable(err)
}

// exists reports whether a query finds anything.
func exists(conn *sqlite3.Conn, text string) (found bool, err error) {
	err = query(conn, text, nil, func(*sqlite3.Stmt) error {
		found = true
		return nil
	})
	return found, err
}

// migrate brings the tables up to date in one transaction. The version is kept in a table of its own, because
// user_version belongs to the program that shares the file. If there is nothing to do, migrate does not write, so that
// a file that other processes keep busy can still be opened.
func (m *migrations) migrate(conn *sqlite3.Conn) (err error) {
	status, err := m.status(conn, "this file")
	if err != nil {
		return err
	}
	if len(status.Pending) == 0 {
		return status.Err()
	}
	if err := conn.Exec(`BEGIN IMMEDIATE`); err != nil {
		return unavailable(err)
	}
	defer func() {
		if err != nil && !conn.GetAutocommit() {
			err = fmt.Errorf("%w%s", err, rollbackNote(conn))
		}
	}()
	if err := conn.Exec(createSchema); err != nil {
		return unavailable(err)
	}
	if status, err = m.status(conn, "this file"); err != nil {
		return err
	}
	for i, file := range status.Pending {
		if err := m.apply(conn, file, status.Version+i+1); err != nil {
			return err
		}
	}
	return unavailable(conn.Exec(`COMMIT`))
}

// rollbackNote undoes a failed migration, and returns a note if that fails too.
func rollbackNote(conn *sqlite3.Conn) string {
	if err := conn.Exec(`ROLLBACK`); err != nil {
		return " (and the rollback failed: " + err.Error() + ")"
	}
	return ""
}

func (m *migrations) apply(conn *sqlite3.Conn, file string, version int) error {
	text, err := m.text(file, version)
	if err != nil {
		return err
	}
	if err := conn.Exec(text); err != nil {
		return fmt.Errorf("%s: %w", file, unavailable(err))
	}
	return nil
}

// text returns a migration with the statement that records its version.
func (m *migrations) text(file string, version int) (string, error) {
	text, err := m.Text(file, sqltx.DefaultPrefix)
	return fmt.Sprintf("%s\nINSERT INTO onceward_schema (version, applied_at) VALUES (%d, datetime('now'));\n",
		text, version), err
}

// plainHead begins the script that PlainSQL returns. The shell of SQLite continues after an error unless .bail is on,
// and a constraint is its only way to raise an error.
const plainHead = `-- Brings the tables of Onceward from version %[1]d to version %[2]d, in one transaction.
-- sqlite3 FILE < THIS_FILE
.bail on

BEGIN IMMEDIATE;

%[3]s;
CREATE TEMP TABLE onceward_found (
	version INTEGER,
	CONSTRAINT "the tables are not of version %[1]d: print this script again, for the version that is there" CHECK (version = %[1]d)
);
INSERT INTO onceward_found SELECT coalesce(max(version), 0) FROM onceward_schema;
DROP TABLE onceward_found;

`

// PlainSQL returns the migrations after a version, zero for all of them, as one transaction for the shell of SQLite. It
// is for users who change their databases by hand. The script refuses tables of another version. A file that the shell
// creates has the permissions of its caller's umask.
func PlainSQL(from int) (string, error) {
	all := ownMigrations()
	return all.plain(from)
}

// plain returns the migrations after a version as a script.
func (m *migrations) plain(from int) (string, error) {
	if from < 0 || from >= m.Version() {
		return "", fmt.Errorf("sqlite: there are no migrations after version %d: the newest version is %d", from, m.Version())
	}
	var script strings.Builder
	fmt.Fprintf(&script, plainHead, from, m.Version(), createSchema)
	for version := from + 1; version <= m.Version(); version++ {
		text, err := m.text(m.Names[version-1], version)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&script, "-- %s\n%s\n", m.Names[version-1], text)
	}
	script.WriteString("COMMIT;\n")
	return script.String(), nil
}
