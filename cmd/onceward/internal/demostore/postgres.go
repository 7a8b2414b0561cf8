package demostore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/demo/rehearsal"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/storeurl"
)

// prepareSchema creates a schema on PostgreSQL.
func prepareSchema(ctx context.Context, chosen, schema string) (rehearsal.Place, error) {
	server := withParameter(chosen, "front", "") // only the store uses this parameter
	place := rehearsal.Place{
		URL: withParameter(chosen, "search_path", schema), Kind: "PostgreSQL", Where: "the schema " + schema,
		Drop: func(ctx context.Context) error { return executePostgres(ctx, server, "DROP SCHEMA "+schema+" CASCADE") },
	}
	if err := executePostgres(ctx, server, "CREATE SCHEMA IF NOT EXISTS "+schema); err != nil {
		return rehearsal.Place{}, schemaError(err)
	}
	return place, nil
}

// withParameter returns a URL with a parameter set to another value, or without the
// parameter if the value is empty. [url.Parse] cannot read a URL with several hosts.
func withParameter(text, name, value string) string {
	place, query, _ := strings.Cut(text, "?")
	var parts []string
	for part := range strings.SplitSeq(query, "&") {
		if part != "" && !strings.HasPrefix(part, name+"=") {
			parts = append(parts, part)
		}
	}
	if value != "" {
		parts = append(parts, name+"="+value)
	}
	if len(parts) == 0 {
		return place
	}
	return place + "?" + strings.Join(parts, "&")
}

// insufficientPrivilege is the error code of PostgreSQL for a missing right.
const insufficientPrivilege = "42501"

// schemaError adds advice to the error of a schema that could not be created.
func schemaError(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return fmt.Errorf("the demo makes a schema of its own in the database of --store, and its user may not: "+
			"grant it CREATE on the database: %w", err)
	}
	return fmt.Errorf("the database of --store cannot be used: %w", err)
}

func executePostgres(ctx context.Context, server, statement string) error {
	at, err := storeurl.Parse(server)
	if err != nil {
		return err
	}
	config, err := postgres.PoolConfig(at.URL) // without the store's own parameters
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig) // to the primary, as the store does
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	_ = conn.Close(ctx) // the statement's result is known already
	return err
}
