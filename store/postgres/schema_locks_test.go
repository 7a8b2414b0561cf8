package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/servers"
)

// This file holds the sixth migration, up and down, against the locks of others.

// holding begins a transaction that holds what a statement takes, until it is rolled back.
func holding(t testing.TB, pool *pgxpool.Pool, statement string) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the test did not get that far
	_, err = tx.Exec(t.Context(), statement)
	must(t, err)
	return tx
}

// waitsFor reports whether somebody waits for a lock on a table.
func waitsFor(t testing.TB, admin *pgxpool.Pool, table string) bool {
	t.Helper()
	return number(t, admin, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)`, table) > 0
}

// dumping holds the locks of a dump.
const dumping = `LOCK TABLE onceward_record, onceward_secret IN ACCESS SHARE MODE`

// TestMigrationMeetsADump: a dump holds a lock on each table for as long as it takes. A service that migrates meanwhile
// waits for it before it has made anything, so that nobody waits for that.
func TestMigrationMeetsADump(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 2} {
		at := servers.Postgres(t).SchemaURL(t)
		admin := openAdmin(t, at)
		migrateTo(t, admin, 5)
		if partitions > 0 {
			exec(t, admin, `SELECT onceward_partition($1)`, partitions)
		}
		dump := holding(t, admin, dumping)
		opened := make(chan error, 1)
		go func() { opened <- openAndClose(at, nil) }()
		eventually(t, "it waits for the dump", 20*time.Second, func() bool {
			return waitsFor(t, admin, "onceward_secret") || waitsFor(t, admin, "onceward_record")
		})
		other := openAdmin(t, at+"&lock_timeout=500ms")
		for begun := time.Now(); time.Since(begun) < 3*time.Second; { // in which it gives up, and tries again
			exec(t, other, `UPDATE onceward_record SET attempt = attempt WHERE state = 99`)
			exec(t, other, `SELECT FROM onceward_record LIMIT 1`)
		}
		must(t, dump.Rollback(t.Context()))
		must(t, await(t, "the migration", opened))
		wantIndexes(t, admin)
	}
}

// TestMigrationByAnotherToolMeetsADump: with a bound on locks a tool fails before anything was made; without a dump it
// makes what takes long under no lock on the table that programs read when they start.
func TestMigrationByAnotherToolMeetsADump(t *testing.T) {
	t.Parallel()
	at := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, at)
	asBefore(t, admin, 5)
	dump := holding(t, admin, dumping)
	err := apply(t, openAdmin(t, at+"&lock_timeout=100ms"), 6, "Up")
	if err == nil || !strings.Contains(err.Error(), "lock timeout") ||
		strings.Contains(err.Error(), "DROP INDEX") || strings.Contains(err.Error(), "ALTER TABLE") {
		t.Errorf("during a dump the migration ends with %v", err)
	}
	must(t, dump.Rollback(t.Context()))
	migration := holding(t, admin, `SELECT`)
	for _, statement := range statements(t, readMigration(t, 6), "Up") {
		if strings.HasPrefix(strings.TrimSpace(statement), "CREATE TABLE") { // which comes behind the indexes
			break
		}
		_, err := migration.Exec(t.Context(), statement)
		must(t, err)
	}
	exec(t, openAdmin(t, at+"&lock_timeout=5s"), `SELECT FROM onceward_secret`)
}
