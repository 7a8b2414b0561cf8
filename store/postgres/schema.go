package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// schemaVersion is that of the tables which this program knows. The number of migrations is the same.
const schemaVersion = 3

// The statements about the version of the tables.
const (
	selectVersion    = `SELECT coalesce(max(version), 0) FROM @schema`
	selectCompatible = `SELECT coalesce(max(version), 0), coalesce(max(compatible), 0) FROM @schema`
)

// Migrations holds the migrations in the format of goose, for those who apply them with a tool of their own. They name
// their tables onceward_… and create them in the first schema of the search_path.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the directory is compiled in
	}
	return sub
}

// Migrate creates the tables, or brings them up to date, in one transaction. Any number of processes may call it at
// once. It refuses tables that were made by a newer version which this one cannot work with.
func (s *Store) Migrate(ctx context.Context) error {
	files, err := fs.Glob(Migrations(), "*.sql")
	if err != nil {
		return err
	}
	missing, err := s.tablesMissing(ctx)
	if err != nil {
		return err
	}
	version := 0
	if !missing {
		if version, err = s.version(ctx); err != nil {
			return err
		}
	}
	// A user who may not create tables gets by if there is nothing to do.
	if version < len(files) {
		if err := pgx.BeginFunc(ctx, s.own, func(tx pgx.Tx) error { return s.migrate(ctx, tx, files) }); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	return s.readTables(ctx)
}

func (s *Store) migrate(ctx context.Context, tx pgx.Tx, files []string) error {
	const (
		lock = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`
		path = `SELECT set_config('search_path', $1, true)`
	)
	if _, err := tx.Exec(ctx, lock, "onceward migrate "+s.channel); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, path, pgx.Identifier{s.names.schema}.Sanitize()); err != nil {
		return err
	}
	version := 0
	var present bool
	err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, s.names.render(`@schema`)).Scan(&present)
	if err != nil {
		return err
	}
	if present {
		if err := tx.QueryRow(ctx, s.names.render(selectVersion)).Scan(&version); err != nil {
			return err
		}
	}
	for _, file := range files[min(version, len(files)):] {
		text, err := fs.ReadFile(Migrations(), file)
		if err != nil {
			return err
		}
		// Without arguments pgx sends a text of several statements as it is.
		if _, err := tx.Exec(ctx, s.names.migration(upPart(string(text)))); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

var gooseMark = regexp.MustCompile(`(?m)^-- \+goose .*$`)

// upPart is the part of a migration that is applied.
func upPart(text string) string {
	up, _, _ := strings.Cut(text, "-- +goose Down")
	return gooseMark.ReplaceAllString(up, "")
}

// tablesMissing reports whether there are no tables at all.
func (s *Store) tablesMissing(ctx context.Context) (missing bool, err error) {
	err = s.own.QueryRow(ctx, `SELECT to_regclass($1) IS NULL`, s.names.render(`@schema`)).Scan(&missing)
	return missing, err
}

// version is that of the tables.
func (s *Store) version(ctx context.Context) (version int, err error) {
	err = s.own.QueryRow(ctx, s.names.render(selectVersion)).Scan(&version)
	return version, err
}

// errNewerSchema is returned when the tables belong to a newer version.
var errNewerSchema = errors.New("the tables were made by a newer version of the program")

// checkVersion refuses tables that this program does not know how to use. A newer version may say that older ones still
// do, so that both can run during a deploy.
func (s *Store) checkVersion(ctx context.Context) error {
	var version, compatible int
	err := s.own.QueryRow(ctx, s.names.render(selectCompatible)).Scan(&version, &compatible)
	switch {
	case err != nil:
		return err
	case compatible > schemaVersion:
		return fmt.Errorf("%w: they are of version %d, this program knows version %d, "+
			"and the oldest that they can be used with is %d: use a newer program",
			errNewerSchema, version, schemaVersion, compatible)
	case version < schemaVersion:
		return fmt.Errorf("the tables are of version %d, and this program needs version %d: call Migrate",
			version, schemaVersion)
	}
	return nil
}

// defaultPrefix is what the names of tables and functions begin with in the migrations.
const defaultPrefix = "onceward_"

// names says where the tables are.
type names struct {
	schema string
	prefix string
}

var prefixPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`)

func (n names) check() error {
	if !prefixPattern.MatchString(n.prefix) {
		return fmt.Errorf("postgres: the table prefix %q is not made of at most 30 lower-case letters, digits "+
			"and underscores", n.prefix)
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

// migration gives a migration the prefix of the user's choice.
func (n names) migration(text string) string {
	return strings.ReplaceAll(text, defaultPrefix, n.prefix)
}

// channel is the one on which settled records are announced: one for each set of tables in a database.
func (n names) channel() string {
	return n.prefix + shortHash(n.schema+"\x00"+n.prefix)
}
