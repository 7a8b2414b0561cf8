package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// schemaVersion is that of the tables which this program knows. The number of migrations is the same.
const schemaVersion = 6

// selectStatus reads the version of the tables, and the oldest one of a program that may use them.
const selectStatus = `SELECT coalesce(max(version), 0), coalesce(max(compatible), 0) FROM @schema`

// Migrations holds the migrations in the format of goose, for those who apply them with a tool of their own. They name
// their tables onceward_… and create them in the first schema of the search_path.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the directory is compiled in
	}
	return sub
}

// migrationNames are the files of [Migrations], in their order.
func migrationNames() []string {
	files, err := fs.Glob(Migrations(), "*.sql")
	if err != nil {
		panic(err) // the pattern is right
	}
	return files
}

// Migrate creates the tables, or brings them up to date. Any number of processes may call it at once. It refuses tables
// that were made by a newer version which this one cannot work with. The options are those of [Open], which does the
// same in one transaction, unless it is told not to. Migrate makes the indexes that take long in a large table before
// that, and drops what is not needed afterwards, while other programs write: it waits for transactions that were open
// then. With [WithPartitions] it also converts
// tables that are there, during which nothing can be executed.
func Migrate(ctx context.Context, url string, with ...Option) error {
	if err := look(ctx, url, with, indexAhead); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	automatic := func(o *options) { o.manual, o.readOnly, o.converts = false, false, true }
	s, err := Open(ctx, url, append(slices.Clone(with), automatic)...)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if err := look(ctx, url, with, indexBehind); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	if err := look(ctx, url, with, s.convert); err != nil {
		return fmt.Errorf("postgres: migrate: %w", err)
	}
	return nil
}

// Status returns how the tables stand against what this program needs. It writes nothing, and does with a user who may
// only SELECT from the table of versions. The options that count are [WithSchema] and [WithTablePrefix].
func Status(ctx context.Context, url string, with ...Option) (status store.SchemaStatus, err error) {
	err = look(ctx, url, with, func(_ context.Context, _ *pgx.Conn, _ names, found store.SchemaStatus) error {
		status = found
		return nil
	})
	if err != nil {
		return status, fmt.Errorf("postgres: status: %w", err)
	}
	return status, nil
}

// look finds out how the tables stand, by a connection of its own, and calls a function with it.
func look(
	ctx context.Context, url string, with []Option,
	do func(ctx context.Context, conn *pgx.Conn, where names, status store.SchemaStatus) error,
) error {
	chosen := defaults()
	for _, option := range with {
		option(&chosen)
	}
	config, err := PoolConfig(url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is under way
	where, err := findTables(ctx, conn, &chosen)
	if err != nil {
		return err
	}
	status, err := readStatus(ctx, conn, where)
	if err != nil {
		return err
	}
	return do(ctx, conn, where, status)
}

// asker is a connection, or a pool of them.
type asker interface {
	QueryRow(ctx context.Context, statement string, args ...any) pgx.Row
}

// readStatus reads the version of the tables.
func readStatus(ctx context.Context, conn asker, where names) (store.SchemaStatus, error) {
	status := store.SchemaStatus{Place: where.place(), Wanted: schemaVersion}
	var present bool
	err := conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, where.render(`@schema`)).Scan(&present)
	if err == nil && present {
		err = conn.QueryRow(ctx, where.render(selectStatus)).Scan(&status.Version, &status.Compatible)
	}
	if err == nil && present {
		err = conn.QueryRow(ctx, selectPartitions, where.render(`@record`)).Scan(&status.Partitions)
	}
	if err != nil {
		return status, fmt.Errorf("read the version of the tables in %s: %w", status.Place, err)
	}
	status.Pending = migrationNames()[min(status.Version, schemaVersion):]
	return status, nil
}

// migrate brings the tables up to date. A user who may not create tables gets by if there is nothing to do.
func (s *Store) migrate(ctx context.Context) error {
	status, err := readStatus(ctx, s.own, s.names)
	if err != nil || len(status.Pending) == 0 {
		return err
	}
	until := time.Now().Add(migrationWait)
	err = repeatOn(ctx, meetsMigration, func() error {
		return whenFree(ctx, until, func() error {
			return pgx.BeginFunc(ctx, s.own, func(tx pgx.Tx) error { return s.migrateIn(ctx, tx) })
		})
	})
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if !s.options.converts {
		s.dropLeft(ctx)
	}
	return nil
}

// The states of what another one has made at the same time: tables, and things that tables have.
const (
	stateDuplicateTable    = "42P07"
	stateDuplicateObject   = "42710"
	stateDuplicateFunction = "42723"
	stateInternal          = "XX000" // a row of the catalogue that another one has just changed
	stateLockNotAvailable  = "55P03" // it waited for longer than the store's own connections do
)

// meetsMigration reports whether a migration failed because another one is under way. Where there are no advisory
// locks, or transactions see what was there when they began, the lock does not keep them apart: all but one are undone,
// and find nothing to do when they look again.
func meetsMigration(err error) bool {
	switch sqlState(err) {
	case stateDuplicateTable, stateDuplicateObject, stateDuplicateFunction, stateUniqueViolation, stateInternal,
		stateLockNotAvailable:
		return true
	default:
		return undone(err)
	}
}

// migrateIn brings the tables up to date in a transaction.
func (s *Store) migrateIn(ctx context.Context, tx pgx.Tx) error {
	if err := s.names.enter(ctx, tx, s.locking); err != nil {
		return err
	}
	status, err := readStatus(ctx, tx, s.names)
	if err != nil {
		return err
	}
	if status.Version > 0 && len(status.Pending) > 0 {
		if err := s.names.holdIndexes(ctx, tx, s.locking); err != nil {
			return err
		}
	}
	for _, file := range status.Pending {
		text, err := s.names.migration(file)
		if err != nil {
			return err
		}
		if status.Version > 0 && status.Partitions == 0 {
			if text, err = s.names.withoutIndexes(ctx, tx, file, text); err != nil {
				return err
			}
		}
		// Without arguments pgx sends a text of several statements as it is.
		if _, err := tx.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if status.Version == 0 && s.options.partitions > 0 {
		if _, err := tx.Exec(ctx, s.names.render(partition), s.options.partitions); err != nil {
			return fmt.Errorf("make %d partitions: %w", s.options.partitions, err)
		}
	}
	return nil
}

var gooseMark = regexp.MustCompile(`(?m)^-- \+goose .*\n`)

// upPart is the part of a migration that is applied.
func upPart(text string) string {
	up, _, _ := strings.Cut(text, "-- +goose Down")
	return gooseMark.ReplaceAllString(up, "")
}

// plainHead begins what PlainSQL returns, and plainCheck refuses tables of another version. The table is named in a
// text, because it need not be there.
const (
	plainHead = `-- Brings the tables of Onceward in %[1]s from version %[2]d to version %[3]d, in one transaction.
-- psql -v ON_ERROR_STOP=1 -f THIS_FILE

BEGIN ISOLATION LEVEL READ COMMITTED;

`
	plainPartition = "SELECT %s(%d);\n"
	// plainConvert ends the transaction of the migrations, because others must know them before records are converted.
	plainConvert = `COMMIT;

-- Everybody is locked out while the records that are there are copied.
BEGIN ISOLATION LEVEL READ COMMITTED;

`
	plainPath  = "SET LOCAL search_path TO %s;\n"
	plainCheck = `SELECT pg_advisory_xact_lock(hashtextextended(%[1]s, 0));

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

// PlainSQL returns the migrations after a version, zero for all of them, as one transaction that psql runs as it is:
// for those who apply changes of their databases by hand, or by a tool of their own. It refuses tables of another
// version than that. Without a schema it uses the first of the search_path; without a prefix, onceward_. Of the options
// [WithPartitions] counts, and converts records that are there, in a second transaction, also those of the newest
// version.
func PlainSQL(schema, prefix string, from int, with ...Option) (string, error) {
	where := names{schema: schema, prefix: cmp.Or(prefix, defaultPrefix)}
	var chosen options
	for _, option := range with {
		option(&chosen)
	}
	if err := errors.Join(where.checkPrefix(), chosen.checkPartitions()); err != nil {
		return "", err
	}
	if from < 0 || from > schemaVersion || from == schemaVersion && chosen.partitions == 0 {
		return "", fmt.Errorf("postgres: there are no migrations after version %d: the versions are 0 to %d", from,
			schemaVersion)
	}
	var text strings.Builder
	fmt.Fprintf(&text, plainHead, where.place(), from, schemaVersion)
	where.writePath(&text)
	versions := pgx.Identifier{where.prefix + "schema"}.Sanitize()
	fmt.Fprintf(&text, plainCheck, literal(where.migrationLock()), literal(versions), versions, from)
	for _, file := range migrationNames()[from:] {
		up, err := where.migration(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "-- %s\n%s", file, up)
	}
	if chosen.partitions > 0 && from > 0 {
		text.WriteString(plainConvert)
		where.writePath(&text)
	}
	if chosen.partitions > 0 {
		fmt.Fprintf(&text, plainPartition, pgx.Identifier{where.prefix + "partition"}.Sanitize(), chosen.partitions)
	}
	text.WriteString("COMMIT;\n")
	return text.String(), nil
}

// writePath lets the statements of a transaction name the tables without their schema.
func (n names) writePath(text *strings.Builder) {
	if n.schema != "" {
		fmt.Fprintf(text, plainPath, pgx.Identifier{n.schema}.Sanitize())
	}
}

// literal writes a text as SQL does.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// defaultPrefix is what the names of tables and functions begin with in the migrations.
const defaultPrefix = "onceward_"

// names says where the tables are.
type names struct {
	schema string
	prefix string
}

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

// findTables finds out in which schema the tables are, or are to be.
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

// place says in words where the tables are.
func (n names) place() string {
	if n.schema == "" {
		return "the first schema of the search_path, as " + n.prefix + "…"
	}
	return fmt.Sprintf("schema %q, as %s…", n.schema, n.prefix)
}

func (n names) checkPrefix() error {
	if !prefixPattern.MatchString(n.prefix) {
		return fmt.Errorf("postgres: the table prefix %q is not made of at most 30 lower-case letters, digits "+
			"and underscores", n.prefix)
	}
	return nil
}

func (n names) check() error {
	if err := n.checkPrefix(); err != nil {
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

// migration is the part of a file that is applied, with the prefix of the user's choice.
func (n names) migration(file string) (string, error) {
	text, err := fs.ReadFile(Migrations(), file)
	return strings.ReplaceAll(upPart(string(text)), defaultPrefix, n.prefix), err
}

// enter keeps others from migrating the same tables until the transaction ends, and lets its statements name them
// without their schema. It fails with errBusy if another one is at it.
func (n names) enter(ctx context.Context, tx pgx.Tx, locks locking) error {
	const path = `SELECT set_config('search_path', $1, true)`
	if locks != rowLocks {
		if err := wantFree(ctx, tx, takeLock, n.migrationLock()); err != nil {
			return err
		}
	}
	if locks.rows() {
		if err := n.lockVersions(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, path, pgx.Identifier{n.schema}.Sanitize())
	return err
}

// migrationWait is how long a store that is opened waits for others who migrate, all together. Who was told to migrate
// waits for as long as it takes.
const migrationWait = 40 * time.Second

// takeLock is a statement that takes an advisory lock, if it is free.
const takeLock = `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`

// errBusy is returned when another one is at the same tables.
var errBusy = errors.New("another one is at the same tables")

// wantFree fails with errBusy unless what it asks is so. It asks by the simple protocol, after which a transaction looks
// at nothing any more at the level READ COMMITTED.
func wantFree(ctx context.Context, tx pgx.Tx, question, about string) error {
	var so bool
	err := tx.QueryRow(ctx, question, pgx.QueryExecModeSimpleProtocol, about).Scan(&so)
	if err == nil && !so {
		err = errBusy
	}
	return err
}

// whenFree does something in a transaction, again and again until nobody else is at the same tables, or, unless that is
// zero, until a time. Who makes an index concurrently waits for each transaction that looks at the database at the
// moment, until it ends: one that waited for the index meanwhile, or for another one that does, would wait for ever. So
// each try is a transaction of its own.
func whenFree(ctx context.Context, until time.Time, do func() error) error {
	for tries := 1; ; tries++ {
		err := do()
		if !errors.Is(err, errBusy) {
			return err
		}
		if !until.IsZero() && time.Now().After(until) {
			return fmt.Errorf("another one has been at the same tables for %s: try again when it has ended", migrationWait)
		}
		if !pauseUndone(ctx, tries) {
			return ctx.Err()
		}
	}
}

// lockVersions keeps others from migrating by the table of versions, if it is there: that of locks may not be.
func (n names) lockVersions(ctx context.Context, tx pgx.Tx) error {
	var present bool
	err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, n.render(`@schema`)).Scan(&present)
	if err == nil && present {
		_, err = tx.Exec(ctx, n.render(`LOCK TABLE @schema IN SHARE ROW EXCLUSIVE MODE`))
	}
	return err
}

// migrationLock names the lock that keeps others from migrating the same tables.
func (n names) migrationLock() string { return "onceward migrate " + n.channel() }

// indexLock names the lock of the one who makes indexes ahead of the migrations, between which others could come.
func (n names) indexLock() string { return n.migrationLock() + " index" }

// channel is the one on which settled records are announced: one for each set of tables in a database.
func (n names) channel() string {
	return n.prefix + shortHash(n.schema+"\x00"+n.prefix)
}
