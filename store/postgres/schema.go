package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// selectStatus reads the version of the tables.
const selectStatus = `SELECT coalesce(max(version), 0) FROM @schema`

// Migrations returns the migrations in the format of goose, for users who apply them with a tool of their own.
// They create tables named onceward_… in the first schema of the search_path. There are no down migrations,
// because they would delete every key.
func Migrations() fs.FS { return sqltx.MigrationFiles(migrationFiles) }

// Migrate creates or updates the tables. Any number of processes may call it at once. It refuses tables that a newer
// version has made. It takes the options of [Open], which does the same unless [WithManualMigration] is given.
func Migrate(ctx context.Context, url string, with ...Option) error {
	automatic := func(o *options) { o.manual, o.readOnly = false, false }
	s, err := Open(ctx, url, append(append([]Option{}, with...), automatic)...)
	if err != nil {
		return err
	}
	return s.Close()
}

// Status returns the version of the tables, compared with the version that this program needs. It writes nothing,
// and needs no right but to SELECT from the table of versions. Only the options [WithSchema] and
// [WithTablePrefix] have an effect.
func Status(ctx context.Context, url string, with ...Option) (status store.SchemaStatus, err error) {
	chosen := defaults()
	for _, option := range with {
		option(&chosen)
	}
	config, err := PoolConfig(url)
	if err != nil {
		return status, fmt.Errorf("postgres: status: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return status, fmt.Errorf("postgres: status: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is running
	where, err := findTables(ctx, conn, &chosen)
	if err == nil {
		status, err = readStatus(ctx, conn, where, &chosen.migrations)
	}
	if err != nil {
		return status, fmt.Errorf("postgres: status: %w", err)
	}
	return status, nil
}

// asker is a connection, or a pool of them.
type asker interface {
	QueryRow(ctx context.Context, statement string, args ...any) pgx.Row
}

// selectPresent reads whether a table exists. The query takes a lock on pg_class, so that the session sees what others
// have committed since its last look: a table that was missing then may be cached as missing.
const selectPresent = `SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1))`

// readStatus reads the version of the tables.
func readStatus(ctx context.Context, conn asker, where names, m *sqltx.Migrations) (store.SchemaStatus, error) {
	status := store.SchemaStatus{Place: where.place(), Wanted: m.Version()}
	var present bool
	err := conn.QueryRow(ctx, selectPresent, where.render(`@schema`)).Scan(&present)
	if err == nil && present {
		err = conn.QueryRow(ctx, where.render(selectStatus)).Scan(&status.Version)
	}
	if err != nil {
		return status, fmt.Errorf("read the version of the tables in %s: %w", status.Place, err)
	}
	status.Pending = m.After(status.Version)
	return status, nil
}

// migrate updates the tables. If there is nothing to do, the user need not be allowed to create tables.
func (s *Store) migrate(ctx context.Context) error {
	status, err := readStatus(ctx, s.own, s.names, &s.options.migrations)
	if err != nil || len(status.Pending) == 0 {
		return err
	}
	err = repeatOn(ctx, waitsForMigration, func() error {
		return pgx.BeginTxFunc(ctx, s.own, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return s.migrateIn(ctx, tx)
		})
	})
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// waitsForMigration reports whether a migration failed because of other sessions, which migrate the same tables or use
// them, and may be retried.
func waitsForMigration(err error) bool { return undone(err) || sqlState(err) == stateLockNotAvailable }

// migrateIn updates the tables in a transaction. The lock keeps other processes from migrating the same tables
// until the transaction ends.
func (s *Store) migrateIn(ctx context.Context, tx pgx.Tx) error {
	const path = `SELECT set_config('search_path', $1, true)`
	if _, err := tx.Exec(ctx, path, pgx.Identifier{s.names.schema}.Sanitize()); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, s.names.lockMigration()); err != nil {
		return err
	}
	status, err := readStatus(ctx, tx, s.names, &s.options.migrations)
	if err != nil {
		return err
	}
	for _, file := range status.Pending {
		text, err := s.options.migrations.Text(file, s.names.prefix)
		if err != nil {
			return err
		}
		// Without arguments pgx sends a text of several statements as it is.
		if _, err := tx.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// plainHead begins the text that PlainSQL returns, and plainCheck refuses tables of another version. The name of the
// table is in a string, because the table may not exist.
const (
	plainHead = `-- Brings the tables of Onceward in %[1]s from version %[2]d to version %[3]d, in one transaction.
-- psql -v ON_ERROR_STOP=1 -f THIS_FILE

BEGIN ISOLATION LEVEL READ COMMITTED;

`
	plainPath  = "SET LOCAL search_path TO %s;\n"
	plainCheck = `%[1]s;

DO $check$
DECLARE
	found integer := 0;
BEGIN
	IF to_regclass(%[2]s) IS NOT NULL THEN
		EXECUTE 'SELECT coalesce(max(version), 0) FROM %[3]s' INTO found;
	END IF;
	IF found <> %[4]d THEN
		RAISE EXCEPTION 'the tables of Onceward are of version %%, and this script is for version %[4]d', found
			USING HINT = 'Print it again, for the version that is there.';
	END IF;
END
$check$;

`
)

// PlainSQL returns the migrations after a version, zero for all of them, as one transaction that psql runs unchanged.
// It is for users who change their databases by hand, or with a tool of their own. The script refuses tables of another
// version than from. An empty schema means the first schema of the search_path; an empty prefix means onceward_.
func PlainSQL(schema, prefix string, from int) (string, error) {
	all := sqltx.NewMigrations(Migrations())
	return plainScript(&all, names{schema: schema, prefix: cmp.Or(prefix, sqltx.DefaultPrefix)}, from)
}

// plainScript returns the migrations after a version as a script.
func plainScript(m *sqltx.Migrations, where names, from int) (string, error) {
	if err := sqltx.CheckPrefix("postgres", where.prefix); err != nil {
		return "", err
	}
	if from < 0 || from >= m.Version() {
		return "", fmt.Errorf("postgres: there are no migrations after version %d: the newest version is %d", from, m.Version())
	}
	var text strings.Builder
	fmt.Fprintf(&text, plainHead, where.place(), from, m.Version())
	if where.schema != "" {
		fmt.Fprintf(&text, plainPath, pgx.Identifier{where.schema}.Sanitize())
	}
	versions := pgx.Identifier{where.prefix + "schema"}.Sanitize()
	fmt.Fprintf(&text, plainCheck, where.lockMigration(), literal(versions), versions, from)
	for _, file := range m.After(from) {
		up, err := m.Text(file, where.prefix)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "-- %s\n%s", file, up)
	}
	text.WriteString("COMMIT;\n")
	return text.String(), nil
}

// literal returns a text as an SQL string.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// names is the place of the tables: their schema, and the prefix of their names.
type names struct {
	schema string
	prefix string
}

// findTables returns the schema and the prefix of the tables, which need not exist yet.
func findTables(ctx context.Context, conn asker, o *options) (names, error) {
	where := names{schema: o.schema, prefix: o.prefix}
	if where.schema == "" {
		if err := conn.QueryRow(ctx, `SELECT coalesce(current_schema(), '')`).Scan(&where.schema); err != nil {
			return where, err
		}
	}
	if err := where.check(); err != nil {
		return where, err
	}
	var exists bool
	schema := pgx.Identifier{where.schema}.Sanitize()
	err := conn.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, schema).Scan(&exists)
	if err == nil && !exists {
		err = fmt.Errorf("there is no schema %q: create it first", where.schema)
	}
	return where, err
}

// place describes in words where the tables are.
func (n names) place() string {
	if n.schema == "" {
		return "the first schema of the search_path, as " + n.prefix + "…"
	}
	return fmt.Sprintf("schema %q, as %s…", n.schema, n.prefix)
}

func (n names) check() error {
	if err := sqltx.CheckPrefix("postgres", n.prefix); err != nil {
		return err
	}
	if n.schema == "" {
		return errors.New("postgres: there is no schema to create the tables in: " +
			"the search_path of this user names none that exists; use WithSchema")
	}
	return nil
}

var nameMark = regexp.MustCompile(`@[a-z_0-9]+`)

// render puts the names of the tables and functions into a statement: @record becomes "public"."onceward_record".
func (n names) render(statement string) string {
	return nameMark.ReplaceAllStringFunc(statement, func(mark string) string {
		return pgx.Identifier{n.schema, n.prefix + mark[1:]}.Sanitize()
	})
}

// render is [names.render] for the texts of this package, which are rendered once.
func (s *Store) render(statement string) string {
	if text, ok := s.rendered.Load(statement); ok {
		return text.(string)
	}
	text := s.names.render(statement)
	s.rendered.Store(statement, text)
	return text
}

// lockMigration returns the statement that takes the lock which keeps other sessions from migrating the same tables.
// The server names the schema, the first one of the search_path: a script of [PlainSQL] need not know it.
func (n names) lockMigration() string {
	name := literal("onceward migrate "+n.prefix+" ") + ` || current_schema()`
	return `SELECT pg_advisory_xact_lock(hashtextextended(` + name + `, 0))`
}

// channel returns the channel on which settled records are announced. Each set of tables in a database has its own.
func (n names) channel() string {
	return n.prefix + shortHash(n.schema+"\x00"+n.prefix)
}
