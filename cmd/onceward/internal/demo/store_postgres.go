package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// openSchema makes a schema on PostgreSQL.
func openSchema(ctx context.Context, chosen, schema string) (demoStore, error) {
	parsed, err := url.Parse(chosen)
	if err != nil {
		return demoStore{}, errors.New("--store is not a URL such as postgres://user@host/database")
	}
	server, query := chosen, parsed.Query()
	query.Set("search_path", schema)
	s := demoStore{url: withQuery(*parsed, query), kind: "PostgreSQL", where: "the schema " + schema}
	if query.Has("front") { // which is for the store alone
		query.Del("front")
		query.Del("search_path")
		server = withQuery(*parsed, query)
	}
	s.drop = func(ctx context.Context) error { return executePostgres(ctx, server, "DROP SCHEMA "+schema+" CASCADE") }
	if err := executePostgres(ctx, server, "CREATE SCHEMA IF NOT EXISTS "+schema); err != nil {
		return demoStore{}, schemaError(err)
	}
	return s, nil
}

func withQuery(u url.URL, query url.Values) string {
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus sign as it stands
	return u.String()
}

// insufficientPrivilege is the code by which PostgreSQL says that a user may not do something.
const insufficientPrivilege = "42501"

// schemaError says what to do about a schema that could not be made.
func schemaError(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return fmt.Errorf("the demo makes a schema of its own in the database of --store, and its user may not: "+
			"grant it CREATE on the database: %s", oneLine(err))
	}
	return fmt.Errorf("the database of --store cannot be used: %s", oneLine(err))
}

func executePostgres(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	_ = conn.Close(ctx) // the statement has been answered
	return err
}
