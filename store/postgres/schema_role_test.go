package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servicetest"
	"github.com/onceward/onceward/store/postgres"
)

// grants are what a role needs to use the tables that another one owns. The guide lists the same.
var grants = []string{
	`USAGE ON SCHEMA @schema`,
	`SELECT ON onceward_schema, onceward_secret`,
	`SELECT, INSERT ON onceward_operation`,
	`SELECT, INSERT, UPDATE, DELETE ON onceward_record`,
	`SELECT, INSERT, DELETE ON onceward_finding`,
	`SELECT, INSERT, DELETE ON onceward_notice`,
	`SELECT, INSERT, DELETE ON onceward_audit`,
	`USAGE ON SEQUENCE onceward_attempt`,
	`EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema`,
}

// userRole makes a role that may do nothing by itself, and returns its name and the URL by which it connects.
func userRole(t testing.TB, admin *pgxpool.Pool, schema string) (role, as string) {
	t.Helper()
	role = "onceward_test_" + strings.ToLower(rand.Text())
	exec(t, admin, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, role))
	t.Cleanup(func() {
		exec(t, admin, `DROP OWNED BY `+role)
		exec(t, admin, `DROP ROLE `+role)
	})
	parsed, err := url.Parse(servicetest.Postgres(t).URL())
	must(t, err)
	parsed.User = url.UserPassword(role, "secret")
	query := parsed.Query()
	query.Set("search_path", schema)
	parsed.RawQuery = query.Encode()
	return role, parsed.String()
}

// grant gives a role the rights in a list.
func grant(t testing.TB, admin *pgxpool.Pool, rights []string, schema, role string) {
	t.Helper()
	for _, right := range rights {
		exec(t, admin, `GRANT `+strings.ReplaceAll(right, "@schema", pgx.Identifier{schema}.Sanitize())+` TO `+role)
	}
}

// TestRoleWithoutCreate: whoever may use the tables, and not make any, can do everything but migrate.
func TestRoleWithoutCreate(t *testing.T) {
	t.Parallel()
	server := servicetest.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	grant(t, admin, grants, schema, role)
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		store := openStore(t, as, options...)
		exercise(t, store, fmt.Sprint("with ", len(options), " options"))
		must(t, store.Migrate(t.Context()))
	}
	user := openAdmin(t, as)
	if _, err := user.Exec(t.Context(), `CREATE TABLE forbidden ()`); err == nil {
		t.Error("the role of the test may create tables, so that it proves nothing")
	}
}

// TestEachGrantIsNeeded: without any one of the grants something does not work.
func TestEachGrantIsNeeded(t *testing.T) {
	t.Parallel()
	server := servicetest.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL()+"&search_path="+schema)
	migrate(t, admin, "Up")
	exec(t, admin, `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA `+schema+` FROM PUBLIC`)
	role, as := userRole(t, admin, schema)
	for i, without := range grants {
		grant(t, admin, grants, schema, role)
		exec(t, admin, `REVOKE `+strings.ReplaceAll(without, "@schema", schema)+` FROM `+role)
		if err := tryAll(t.Context(), as, fmt.Sprint("key-", i)); err == nil {
			t.Errorf("everything works without %s", without)
		}
	}
}

// tryAll returns the first failure of a store that lacks a right.
func tryAll(ctx context.Context, as, key string) error {
	store, err := postgres.Open(ctx, as, quiet, postgres.WithManualMigration())
	if err != nil {
		return err
	}
	defer store.Close()
	r := reservation(key)
	r.Operation = "POST /" + key
	v, err := store.Reserve(ctx, r)
	if err != nil {
		return err
	}
	c := onceward.Claim{ID: r.ID, Attempt: v.Record.Attempt}
	if err := store.Abandon(ctx, c, ""); err != nil {
		return err
	}
	if _, err := store.Sweep(ctx, 1); err != nil {
		return err
	}
	if _, err := store.Reap(ctx, 1, false); err != nil {
		return err
	}
	if err := store.AddFinding(ctx, onceward.Finding{Claim: c, Response: answer("late").Response}); err != nil {
		return err
	}
	if _, err := store.AddNotice(ctx, onceward.Notice{Source: "psp", EventID: key}); err != nil {
		return err
	}
	return store.AddAudit(ctx, onceward.AuditEntry{ID: c.ID, Attempt: c.Attempt})
}
