package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations returns the migrations in the format of goose, for users who apply them with
// a tool of their own. They name their tables onceward_… and create them in the database
// of the session. There are no down migrations, because they would delete every key.
func Migrations() fs.FS { return sqltx.MigrationFiles(migrationFiles) }

// Migrate creates the tables, or brings them up to date. Any number of processes may call it at once, on any node: each
// process leaves unchanged what another process has made. A version counts only when all of it is there, because the
// server commits each statement on its own. Migrate refuses tables that a newer version has made. The options are the
// options of [Open], which does the same unless [WithManualMigration] is set.
func Migrate(ctx context.Context, url string, with ...Option) error {
	automatic := func(o *options) { o.manual, o.readOnly = false, false }
	s, err := Open(ctx, url, append(slices.Clone(with), automatic)...)
	if err != nil {
		return err
	}
	return s.Close()
}

// Status compares the version of the tables with the version that this program needs. It writes nothing, and needs only
// the privilege to SELECT from the table of versions. The option that counts is [WithTablePrefix].
func Status(ctx context.Context, url string, with ...Option) (status store.SchemaStatus, err error) {
	s, err := openServer(ctx, url, with)
	if err == nil {
		status, err = s.status(ctx)
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		return status, fmt.Errorf("mysql: status: %w", err)
	}
	return status, nil
}

// selectStatus reads the version of the tables.
const selectStatus = `SELECT COALESCE(MAX(version), 0) FROM @schema`

// status reads the version of the tables.
func (s *Store) status(ctx context.Context) (store.SchemaStatus, error) {
	status := store.SchemaStatus{Place: s.where.Load().names.place(), Wanted: s.options.migrations.Version()}
	err := s.with(ctx, func(conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, s.render(selectStatus)).Scan(&status.Version)
	})
	if err != nil && mysqlNumber(err) != errorNoSuchTable {
		return status, fmt.Errorf("read the version of the tables in %s: %w", status.Place, err)
	}
	status.Pending = s.options.migrations.After(status.Version)
	return status, nil
}

// migrate brings the tables up to date. It succeeds for a user who may not create tables if there is nothing to do.
func (s *Store) migrate(ctx context.Context) error {
	status, err := s.status(ctx)
	if err != nil || len(status.Pending) == 0 {
		return err
	}
	for _, file := range status.Pending {
		text, err := s.options.migrations.Text(file, s.where.Load().names.prefix)
		if err != nil {
			return err
		}
		// Each statement may be repeated, so a migration that was interrupted is run again from its start.
		err = s.with(ctx, func(conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, text)
			return err
		})
		if n := mysqlNumber(err); n == errorNoRight || n == errorNoDatabaseRight {
			return fmt.Errorf("migrate: %s: this user may not: migrate as one with CREATE, CREATE VIEW, ALTER, INDEX and DROP "+
				"beside SELECT, INSERT, UPDATE and DELETE on the database, and open the store with WithManualMigration: %w", file, err)
		}
		if err != nil {
			return fmt.Errorf("migrate: %s: %w", file, err)
		}
	}
	return nil
}

// plainHead begins the script that PlainSQL returns. Only an error can stop a script on the server, so plainCheck
// causes an error if the version is missing.
const (
	plainHead = `-- Brings the tables of Onceward from version %[1]d to version %[2]d. What is there stays: a script
-- that was broken off can be run again.
-- mysql DATABASE < THIS_FILE

`
	plainCheck = `-- Refuses tables of an older version: the subquery then has two rows, which is an error.
SELECT IF(MAX(version) >= %[2]d, 1, (SELECT 1 UNION ALL SELECT 2)) FROM %[1]s;

`
)

// PlainSQL returns the migrations after a version, zero for all of them, as a script
// for the server's command-line client. It is for users who change their databases
// by hand, or by a tool of their own. If the prefix is empty, it is onceward_.
func PlainSQL(prefix string, from int) (string, error) {
	all := sqltx.NewMigrations(Migrations())
	return plainScript(&all, names{prefix: cmp.Or(prefix, sqltx.DefaultPrefix)}, from)
}

// plainScript returns the migrations after a version as a script.
func plainScript(m *sqltx.Migrations, where names, from int) (string, error) {
	if err := sqltx.CheckPrefix("mysql", where.prefix); err != nil {
		return "", err
	}
	if from < 0 || from >= m.Version() {
		return "", fmt.Errorf("mysql: there are no migrations after version %d: the newest version is %d", from, m.Version())
	}
	var script strings.Builder
	fmt.Fprintf(&script, plainHead, from, m.Version())
	if from > 0 {
		fmt.Fprintf(&script, plainCheck, quote(where.prefix+"schema"), from)
	}
	for _, file := range m.After(from) {
		up, err := m.Text(file, where.prefix)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&script, "-- %s\n%s", file, up)
	}
	return script.String(), nil
}

// names holds the names of the tables, and the clock expression.
type names struct {
	database string
	prefix   string
	// clock is the SQL expression for the time in microseconds since 1970.
	clock string
}

// serverClock is the SQL expression for the time of the statement
// by the server's clock, in any time zone of the session.
const serverClock = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// place describes where the tables are.
func (n names) place() string { return fmt.Sprintf("database %q, as %s…", n.database, n.prefix) }

var nameMark = regexp.MustCompile(`@[a-z_0-9]+`)

// render puts names into a statement: @record becomes `database`.`onceward_record`, @now the time, @node the name of
// the server, and @read_only whether the server refuses writes.
func (n names) render(statement string) string {
	return nameMark.ReplaceAllStringFunc(statement, func(mark string) string {
		switch mark {
		case "@now":
			return n.clock
		case "@node":
			return thisNode
		case "@global":
			return mark // a setting of the server
		case "@read_only":
			return "(CONCAT(@@global.read_only) NOT IN ('0', 'OFF'))"
		default:
			return quote(n.database) + "." + quote(n.prefix+mark[1:])
		}
	})
}

// quote quotes a name as an SQL identifier.
func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// render puts the names of the tables into a statement, and caches the result.
func (s *Store) render(statement string) string {
	where := s.where.Load()
	if text, ok := where.rendered.Load(statement); ok {
		return text.(string)
	}
	text := where.names.render(statement)
	where.rendered.Store(statement, text)
	return text
}
