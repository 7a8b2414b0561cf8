package storeurl

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// Migrate creates the tables of the database at a URL, or updates them.
func Migrate(ctx context.Context, url string) error {
	at, err := parseDatabase(url)
	switch {
	case err != nil:
		return err
	case at.Engine == Postgres:
		return postgres.Migrate(ctx, at.URL, at.tables()...)
	case at.Engine == MySQL:
		return mysql.Migrate(ctx, at.URL, at.tablesMySQL()...)
	default:
		return sqlite.Migrate(ctx, at.URL)
	}
}

// Status compares the tables of the database at a URL with what this program needs. It writes nothing.
func Status(ctx context.Context, url string) (store.SchemaStatus, error) {
	at, err := parseDatabase(url)
	switch {
	case err != nil:
		return store.SchemaStatus{}, err
	case at.Engine == Postgres:
		return postgres.Status(ctx, at.URL, at.tables()...)
	case at.Engine == MySQL:
		return mysql.Status(ctx, at.URL, at.tablesMySQL()...)
	default:
		return sqlite.Status(ctx, at.URL)
	}
}

// PlainSQL returns the migrations after a version, or all migrations for version zero, as plain SQL for psql, mariadb
// or the shell of SQLite. It opens nothing, and uses only the engine, the schema and the prefix of the URL.
func PlainSQL(url string, from int) (string, error) {
	at, err := parseDatabase(url)
	if err != nil {
		return "", err
	}
	switch at.Engine {
	case SQLite:
		return sqlite.PlainSQL(from)
	case MySQL:
		return mysql.PlainSQL(at.Prefix, from)
	}
	if at.Schema == "" {
		if at.Schema, err = schemaOf(at.URL); err != nil {
			return "", err
		}
	}
	return postgres.PlainSQL(at.Schema, at.Prefix, from)
}

// schemaOf returns the schema that a URL names by its search_path. psql does not accept that parameter, so a script
// without the schema would create the tables somewhere else.
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

// tables returns the options for the schema and the names of the tables.
func (at *Location) tables() (with []postgres.Option) {
	if at.Schema != "" {
		with = append(with, postgres.WithSchema(at.Schema))
	}
	if at.Prefix != "" {
		with = append(with, postgres.WithTablePrefix(at.Prefix))
	}
	return with
}

// parseDatabase parses the URL of a database, and refuses other stores.
func parseDatabase(url string) (Location, error) {
	at, err := Parse(url)
	if err == nil && !at.Engine.isDatabase() {
		err = errNoTransactions
	}
	return at, err
}
