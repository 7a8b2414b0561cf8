package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
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

// older is why tests that begin with the tables of earlier versions run at night.
const older = "it begins with the tables of an earlier version"

// dumping holds the locks of a dump.
const dumping = `LOCK TABLE onceward_record, onceward_secret IN ACCESS SHARE MODE`

// TestMigrationMeetsADump: a dump holds a lock on each table for as long as it takes. A service that migrates meanwhile
// waits for it before it has made anything, so that nobody waits for that.
func TestMigrationMeetsADump(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
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
		await.That(t, "it waits for the dump", func() bool {
			return waitsFor(t, admin, "onceward_secret") || waitsFor(t, admin, "onceward_record")
		})
		other := openAdmin(t, at+"&lock_timeout=500ms")               // no lock that lasts is in their way
		for begun := time.Now(); time.Since(begun) < 3*time.Second; { // in which it gives up, and tries again
			exec(t, other, `UPDATE onceward_record SET attempt = attempt WHERE state = 99`)
			exec(t, other, `SELECT FROM onceward_record LIMIT 1`)
		}
		must(t, dump.Rollback(t.Context()))
		must(t, await.Value(t, "the migration", opened))
		wantIndexes(t, admin)
	}
}

// TestMigrationByAnotherToolMeetsADump: with a bound on locks a tool fails before anything was made; without a dump it
// makes what takes long under no lock on the table that programs read when they start.
func TestMigrationByAnotherToolMeetsADump(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
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

// TestMigrationMeetsAutovacuum: an index that was left half made is not taken for one that is being made because the
// table is vacuumed, for which a service would wait in vain.
func TestMigrationMeetsAutovacuum(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	server := servers.NewPostgres(t, "autovacuum_naptime=1s")
	superuser := openAdmin(t, server.URL())
	before := connect(t, server.URL())
	exec(t, superuser, `CREATE ROLE migrator LOGIN PASSWORD 'secret'; CREATE SCHEMA AUTHORIZATION migrator`)
	at, err := url.Parse(server.URL() + "&search_path=migrator")
	must(t, err)
	at.User = url.UserPassword("migrator", "secret") // who is not shown what others do
	admin := openAdmin(t, at.String())
	migrateTo(t, admin, 5)
	exec(t, admin, `CREATE INDEX onceward_record_open ON onceward_record (state, due) WHERE state <> 20`)
	exec(t, superuser, `UPDATE pg_index SET indisvalid = false
		WHERE indexrelid = 'migrator.onceward_record_open'::regclass`)
	exec(t, admin, `INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
		SELECT md5('more ' || i)::uuid, 0, 0, 0, decode(repeat('00', 250), 'hex'), 0, '', ''
		FROM generate_series(1, 30000) i`)
	exec(t, admin, `ALTER TABLE onceward_record
		SET (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)`)
	// The counts by which the server finds a table to vacuum are there for sure when the session that wrote has ended.
	_, err = before.Exec(t.Context(), `UPDATE migrator.onceward_record SET due = 1`)
	must(t, err)
	must(t, before.Close(t.Context()))
	admin.Reset()
	await.That(t, "the table is vacuumed", func() bool {
		return number(t, superuser, `SELECT count(*) FROM pg_stat_progress_vacuum
			WHERE relid = 'migrator.onceward_record'::regclass`) > 0
	})
	must(t, openAndClose(at.String(), nil)) // which waits for an index that is being made, and fails if that takes long
	wantIndexes(t, admin)
}

// guideTable is the example of the guide on PostgreSQL of a table that refers to a record.
func guideTable(t testing.TB) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/postgresql.md")
	must(t, err)
	found := regexp.MustCompile(`(?s)\nCREATE TABLE payment \(.*?;\nCREATE INDEX ON payment.*?;\n`).Find(guide)
	if found == nil {
		t.Fatal("the guide has no table that refers to a record")
	}
	return strings.ReplaceAll(string(found), "app.", "")
}

// TestTheWayBackMeetsAForeignKey: records get other names, which a table of the application follows if it is made as
// the guide says. Otherwise nothing is changed, and the owner is told what to do.
func TestTheWayBackMeetsAForeignKey(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	for _, partitions := range []int{0, 2} {
		at := servers.Postgres(t).SchemaURL(t)
		s, admin := openStore(t, at, postgres.WithPartitions(partitions)), openAdmin(t, at)
		exec(t, admin, guideTable(t))
		var ids []string
		for n := range 8 { // of which some change their partition
			key := inTime("0190163d", n)
			complete(t, s, own(t, s, reservation(key)), "done")
			exec(t, admin, `INSERT INTO payment (amount, record) VALUES ($1, $2::text::uuid)`, n, s.RecordID(idOf(key)))
			ids = append(ids, idOf(key).Hash())
		}
		const refers = `ALTER TABLE payment DROP CONSTRAINT payment_record_fkey, ADD CONSTRAINT payment_record_fkey
			FOREIGN KEY (record) REFERENCES onceward_record (id) `
		wantRefused := func(says string) {
			t.Helper()
			err := apply(t, admin, 6, "Down")
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || !strings.Contains(refused.Hint, says) ||
				!strings.Contains(refused.Message, "payment_record_fkey of payment does not follow") {
				t.Errorf("the migration is taken back: %v", err)
			}
		}
		for _, instead := range []string{`ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED`, `ON UPDATE SET NULL`} {
			exec(t, admin, refers+instead)
			wantRefused("ON UPDATE CASCADE")
		}
		wantReplay(t, s, inTime("0190163d", 0), "done", "scenario 32")
		exec(t, admin, `DROP TABLE payment`)
		exec(t, admin, guideTable(t))
		for n := range ids {
			exec(t, admin, `INSERT INTO payment (amount, record) VALUES ($1, $2::text::uuid)`, n,
				s.RecordID(idOf(inTime("0190163d", n))))
		}
		if partitions > 0 && number(t, admin, `SELECT current_setting('server_version_num')::integer`) < 150000 {
			wantRefused("onceward_partition(0)")
			exec(t, admin, `ALTER TABLE payment DROP CONSTRAINT payment_record_fkey`)
			exec(t, admin, `SELECT onceward_partition(0)`)
			exec(t, admin, `ALTER TABLE payment ADD CONSTRAINT payment_record_fkey
				FOREIGN KEY (record) REFERENCES onceward_record (id) ON UPDATE CASCADE`)
		}
		migrateDownTo(t, admin, 5)
		for n, id := range ids {
			if found := number(t, admin, `SELECT count(*) FROM payment JOIN onceward_record r ON r.id = record
				WHERE amount = $1 AND record = $2::text::uuid`, n, id); found != 1 {
				t.Errorf("%d payments refer to the record %d by its hash", found, n)
			}
		}
	}
}

// TestTheWayBackMeetsTheReaper: the migration and a call of the reaper take their locks in one order, so that neither
// waits for the other while that waits for it.
func TestTheWayBackMeetsTheReaper(t *testing.T) {
	t.Parallel()
	nightly.Only(t, older)
	at := servers.Postgres(t).SchemaURL(t)
	must(t, openAndClose(at, nil))
	admin := openAdmin(t, at)
	writer := holding(t, admin, `UPDATE onceward_record SET attempt = attempt WHERE state = 99`)
	down, reaped := make(chan error, 1), make(chan error, 1)
	go func() { down <- apply(t, admin, 6, "Down") }()
	await.That(t, "the migration waits for who writes", func() bool {
		return waitsFor(t, admin, "onceward_record")
	})
	go func() {
		_, err := openAdmin(t, at).Exec(t.Context(), `SELECT onceward_reap()`)
		reaped <- err
	}()
	await.That(t, "the reaper waits", func() bool {
		return number(t, admin, `SELECT count(*) FROM pg_locks WHERE NOT granted
			AND relation IN ('onceward_record'::regclass, 'onceward_walk'::regclass)`) == 2
	})
	must(t, writer.Rollback(t.Context()))
	must(t, await.Value(t, "the way back", down))
	if err := await.Value(t, "the reaper", reaped); err != nil && strings.Contains(err.Error(), "deadlock") {
		t.Error(err)
	}
	if n := number(t, admin, `SELECT max(version) FROM onceward_schema`); n != 5 {
		t.Error(fmt.Sprint("after the way back the tables are of version ", n))
	}
}
