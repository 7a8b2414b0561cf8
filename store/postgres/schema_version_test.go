package postgres_test

import (
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
)

// TestNewerTables: an old program keeps its hands off tables that it does not know how to use.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	openStore(t, url)
	admin := openAdmin(t, url)
	exec(t, admin, `INSERT INTO onceward_schema (version, compatible) VALUES (1000, 999)`)
	before := number(t, admin, `SELECT count(*) FROM onceward_schema`)
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		wantOpenFails(t, url, "they are of version 1000, this program knows version 2, and the oldest that they can be used with is 999: use a newer program", options...)
	}
	if after := number(t, admin, `SELECT count(*) FROM onceward_schema`); after != before {
		t.Errorf("%d versions are noted, want %d as before", after, before)
	}
}

// TestNewerTablesThatAreCompatible: during a deploy, programs of two versions use the same tables (scenario 32). The old one
// may have been running already, or start anew.
func TestNewerTablesThatAreCompatible(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	running := openStore(t, url)
	own(t, running, reservation("before"))
	exec(t, openAdmin(t, url), `INSERT INTO onceward_schema (version, compatible) VALUES (3, 1)`)
	exec(t, openAdmin(t, url), `ALTER TABLE onceward_record ADD COLUMN of_version_three text`)
	exercise(t, running, "running")
	started := openStore(t, url)
	exercise(t, started, "started")
	wantReplay(t, started, "running committed", "running committed", "scenario 32")
	wantReplay(t, running, "started committed", "started committed", "scenario 32")
	must(t, started.Migrate(t.Context()))
}

// TestOlderTables: tables that were left behind are not used by chance.
func TestOlderTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	exec(t, openAdmin(t, url), `DELETE FROM onceward_schema`)
	wantOpenFails(t, url, "call Migrate", postgres.WithManualMigration())
}

// TestTablesMissing: half a set of tables is refused, and says what is not there.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	admin := openAdmin(t, url)
	exec(t, admin, `DELETE FROM onceward_secret`)
	wantOpenFails(t, url, "read the secret of the tables")
	exec(t, admin, `DROP TABLE onceward_secret`)
	wantOpenFails(t, url, "onceward_secret")
}
