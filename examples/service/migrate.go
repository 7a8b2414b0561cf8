package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/store/postgres"
)

// tables are the service's own tables. A real service uses a migration
// tool. Its place is here, before the replicas of a new version start.
const tables = `CREATE TABLE IF NOT EXISTS app.orders (
	id        text PRIMARY KEY,
	tenant    text NOT NULL,
	reference text NOT NULL,
	quantity  integer NOT NULL
)`

// grants are all rights that the service needs, as docs/postgresql.md lists them:
// it can neither change tables nor read other owners' tables. A serial column of
// your own table needs GRANT USAGE ON SEQUENCE too; an IDENTITY column does not.
const grants = `
GRANT USAGE ON SCHEMA app TO @role;
GRANT SELECT, INSERT ON app.orders TO @role;
GRANT SELECT ON app.onceward_schema, app.onceward_message TO @role;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.onceward_record, app.onceward_delivery TO @role;
GRANT SELECT, INSERT, DELETE ON app.onceward_late_completion, app.onceward_external_event, app.onceward_audit,
	app.onceward_execution, app.onceward_outbox, app.onceward_inbox TO @role;
GRANT USAGE ON SEQUENCE app.onceward_attempt, app.onceward_outbox_number TO @role`

// migrate updates the tables, with the rights of their owner, and
// grants the service's role its rights. It can be repeated safely.
func migrate(ctx context.Context) error {
	url, role := os.Getenv("OWNER_DATABASE_URL"), os.Getenv("SERVICE_ROLE")
	if url == "" || role == "" {
		return errors.New("migrate needs OWNER_DATABASE_URL, and in SERVICE_ROLE the name of the service's role")
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS app`); err != nil {
		return fmt.Errorf("create the schema: %w", err)
	}
	store, err := postgres.New(ctx, pool, postgres.WithSchema(schema)) // migrates
	if err != nil {
		return err
	}
	defer store.Close()
	for _, statement := range []string{tables, strings.ReplaceAll(grants, "@role", pgx.Identifier{role}.Sanitize())} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
