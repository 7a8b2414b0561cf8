package storeurl

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// Migrate creates the tables of the database at a URL, or brings them up to date.
func Migrate(ctx context.Context, url string) error {
	return withTables(url,
		func(url string) error { return postgres.Migrate(ctx, url) },
		func(path string) error { return sqlite.Migrate(ctx, path) })
}

// Status returns how the tables of the database at a URL stand against what this program needs. It writes nothing.
func Status(ctx context.Context, url string) (status store.SchemaStatus, err error) {
	err = withTables(url,
		func(url string) error { status, err = postgres.Status(ctx, url); return err },
		func(path string) error { status, err = sqlite.Status(ctx, path); return err })
	return status, err
}

// PlainSQL returns the migrations after a version, zero for all of them, as plain SQL for psql or the shell of SQLite. Of
// the URL only the kind of database counts, and the schema that its search_path names: nothing is opened.
func PlainSQL(url string, from int) (script string, err error) {
	err = withTables(url,
		func(url string) error {
			schema, err := schemaOf(url)
			if err == nil {
				script, err = postgres.PlainSQL(schema, "", from)
			}
			return err
		},
		func(string) error { script, err = sqlite.PlainSQL(from); return err })
	return script, err
}

// schemaOf is the schema that a URL names by its search_path. psql does not take that parameter: who runs a script there
// would make the tables somewhere else.
func schemaOf(url string) (string, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return "", fmt.Errorf("storeurl: %w", err)
	}
	first, _, _ := strings.Cut(config.RuntimeParams["search_path"], ",")
	first = strings.TrimSpace(first)
	if first == `"$user"` || first == "$user" {
		return "", nil
	}
	if quoted, found := strings.CutPrefix(first, `"`); found {
		return strings.ReplaceAll(strings.TrimSuffix(quoted, `"`), `""`, `"`), nil
	}
	return strings.ToLower(first), nil
}

// withTables calls the function for the kind of database that a URL names, without the parameter front.
func withTables(url string, onPostgres, onSQLite func(at string) error) error {
	url, _, err := cutFront(url)
	if err != nil {
		return err
	}
	kind, at, err := databaseOf(url)
	switch {
	case err != nil:
		return err
	case kind == kindPostgres:
		return onPostgres(at)
	default:
		return onSQLite(at)
	}
}

// kind is one of database.
type kind uint8

const (
	kindPostgres kind = iota + 1
	kindSQLite
)

// databaseOf says which kind of database a URL names, and what its driver is to be told.
func databaseOf(url string) (kind, string, error) {
	scheme, rest, found := strings.Cut(url, ":")
	switch {
	case url == "":
		return 0, "", errNoStore
	case found && (scheme == "postgres" || scheme == "postgresql"):
		return kindPostgres, url, nil
	case found && scheme == "sqlite":
		return kindSQLite, strings.TrimPrefix(rest, "//"), nil
	case found && isRedis(scheme):
		return 0, "", errNoTransactions
	case strings.Contains(url, "://"):
		return 0, "", fmt.Errorf("storeurl: no store is called %q: use postgres://…, sqlite:PATH or redis://…", scheme)
	case keywords.MatchString(url):
		return 0, "", errKeywords
	default:
		return kindSQLite, strings.TrimPrefix(url, "//"), nil
	}
}
