package mysql_test

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestMigrateAtOnce: any number of programs may be started at once on an empty database.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	var crowd sync.WaitGroup
	for range 4 {
		crowd.Go(func() {
			if err := mysql.Migrate(t.Context(), url, quiet); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	crowd.Wait()
	status, err := mysql.Status(t.Context(), url)
	if err != nil || status.Err() != nil || len(status.Pending) != 0 || status.Version != status.Wanted {
		t.Errorf("the status is %+v, %v", status, err)
	}
}

// TestManualMigration: a store that is told to leaves the tables as they are, and says what to do.
func TestManualMigration(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	admin := openAdmin(t, url)
	for name, option := range map[string]mysql.Option{
		"manual": mysql.WithManualMigration(), "read-only": mysql.WithReadOnly(),
	} {
		if _, err := mysql.Open(t.Context(), url, option, quiet); !errors.Is(err, store.ErrSchemaMissing) {
			t.Errorf("%s: opened without tables: %v", name, err)
		}
	}
	if n := len(column(t, admin, `SHOW TABLES`)); n != 0 {
		t.Errorf("%d tables were made", n)
	}
	must(t, mysql.Migrate(t.Context(), url, mysql.WithManualMigration(), quiet))
	own(t, openStore(t, url, mysql.WithManualMigration()), reservation("key"))
}

// twoMigrations returns the migration that there is, and an invented second one.
func twoMigrations(t testing.TB) fstest.MapFS {
	t.Helper()
	const first = "00001_tables.sql"
	text, err := fs.ReadFile(mysql.Migrations(), first)
	must(t, err)
	return fstest.MapFS{first: {Data: text}, secondMigration: {Data: []byte(`-- +goose Up
CREATE TABLE IF NOT EXISTS onceward_of_a_later_version (id INT NOT NULL PRIMARY KEY);
INSERT IGNORE INTO onceward_schema (version) VALUES (2);
`)}}
}

const secondMigration = "00002_invented.sql"

// TestSecondMigration: tables of version 1 are brought to version 2 while a program of version 1 runs, which continues
// (scenario 32). A program of version 1 that starts afterwards is refused.
func TestSecondMigration(t *testing.T) {
	t.Parallel()
	server, url := servers.MariaDB(t), mariadb(t)
	files := twoMigrations(t)
	later := mysql.WithMigrations(files)
	running := openStore(t, url)
	own(t, running, reservation("before"))
	status, err := mysql.Status(t.Context(), url, later)
	if err != nil || !errors.Is(status.Err(), store.ErrSchemaOlder) || !slices.Equal(status.Pending, []string{secondMigration}) {
		t.Errorf("the status is %+v (%v)", status, err)
	}
	if _, err := mysql.Open(t.Context(), url, quiet, later, mysql.WithManualMigration()); !errors.Is(err, store.ErrSchemaOlder) {
		t.Errorf("older tables were opened: %v", err)
	}
	script, err := mysql.PlainSQLOf(files, "", 1)
	must(t, err)
	for range 2 { // as a person may, who does not know whether the first time was enough
		must(t, server.Exec(t.Context(), "USE "+url[strings.LastIndex(url, "/")+1:]+";"+script))
	}
	must(t, mysql.Migrate(t.Context(), url, quiet, later))
	if status, err := mysql.Status(t.Context(), url, later); err != nil || status.Err() != nil || status.Version != 2 {
		t.Errorf("after the migration the status is %+v (%v)", status, err)
	}
	own(t, openStore(t, url, later, mysql.WithManualMigration()), reservation("started"))
	own(t, running, reservation("running"))
	if _, err := mysql.Open(t.Context(), url, quiet); !errors.Is(err, store.ErrSchemaNewer) {
		t.Errorf("tables of a newer program were opened: %v", err)
	}
	empty := mariadb(t)
	script, err = mysql.PlainSQLOf(files, "", 1)
	must(t, err)
	if err := server.Exec(t.Context(), "USE "+empty[strings.LastIndex(empty, "/")+1:]+";"+script); err == nil {
		t.Error("the second migration was applied where the first is missing")
	}
}

// TestReadOnlyStore: a user who may only look can look.
func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	own(t, openStore(t, url), reservation("key"))
	looking := openStore(t, asUser(t, url, "SELECT"), mysql.WithReadOnly())
	wantState(t, looking, "key", store.StateInProgress, "a look")
	found, err := looking.List(t.Context(), store.Filter{})
	if err != nil || len(found) != 1 {
		t.Errorf("listed %d, %v", len(found), err)
	}
	if _, err := looking.Reserve(t.Context(), reservation("other")); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("a write of a store for looking: %v", err)
	}
	if err := looking.Bust(t.Context(), idOf("key"), true); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("a bust by a store for looking: %v", err)
	}
}

// asUser is a URL of a database for a new user with these privileges.
func asUser(t testing.TB, url, privileges string) string {
	t.Helper()
	admin := openAdmin(t, url)
	name := "user" + strings.ToLower(rand.Text()[:12])
	exec(t, admin, `CREATE USER `+name+` IDENTIFIED BY 'p@ss/word'`)
	t.Cleanup(func() { exec(t, admin, `DROP USER `+name) })
	exec(t, admin, `GRANT `+privileges+` ON `+url[strings.LastIndex(url, "/")+1:]+`.* TO `+name)
	return strings.Replace(url, "root@", name+":p%40ss%2Fword@", 1)
}

// TestLeastPrivileges: the service gets by with what it reads and writes.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	openStore(t, url)
	s := openStore(t, asUser(t, url, "SELECT, INSERT, UPDATE, DELETE"))
	claim := own(t, s, reservation("key"))
	_, err := s.Complete(t.Context(), claim, answer("done"))
	must(t, err)
	must(t, s.Bust(t.Context(), idOf("key"), false))
	_, err = s.Reap(t.Context(), 10, false)
	must(t, err)
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: idOf("key"), Actor: "eve"}))
	other := openStore(t, asUser(t, mariadb(t), "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE VIEW, ALTER, INDEX, DROP"))
	own(t, other, reservation("key"))
	_, err = mysql.Open(t.Context(), asUser(t, mariadb(t), "SELECT, INSERT, UPDATE, DELETE"), quiet)
	if err == nil || !strings.Contains(err.Error(), "CREATE, CREATE VIEW, ALTER, INDEX and DROP") {
		t.Errorf("a user who may not make tables is told %v", err)
	}
}

// TestTablePrefix: stores with different prefixes share a database, and nothing else.
func TestTablePrefix(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	first, second := openStore(t, url), openStore(t, url, mysql.WithTablePrefix("other_"))
	own(t, first, reservation("key"))
	own(t, second, reservation("key"))
	for _, table := range column(t, openAdmin(t, url), `SHOW TABLES`) {
		if !strings.HasPrefix(table, "onceward_") && !strings.HasPrefix(table, "other_") {
			t.Errorf("there is a table %s", table)
		}
	}
	for _, prefix := range []string{"", "Upper_", "a`b", strings.Repeat("x", 31)} {
		if _, err := mysql.Open(t.Context(), url, mysql.WithTablePrefix(prefix), quiet); err == nil {
			t.Errorf("the prefix %q was accepted", prefix)
		}
	}
}

// TestPlainSQL: the script makes what a store needs, by the server's own client, and can be run again.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	server, url := servers.MariaDB(t), mariadb(t)
	script, err := mysql.PlainSQL("plain_", 0)
	must(t, err)
	for range 2 {
		must(t, server.Exec(t.Context(), "USE "+url[strings.LastIndex(url, "/")+1:]+";"+script))
	}
	own(t, openStore(t, url, mysql.WithManualMigration(), mysql.WithTablePrefix("plain_")), reservation("key"))
	if _, err := mysql.PlainSQL("", 99); err == nil {
		t.Error("there are migrations after version 99")
	}
}

// TestViews: people find a record by what they know of it.
func TestViews(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	for _, key := range []string{"plain", "01234567-89ab-cdef-0123-456789abcdef"} {
		for _, scope := range []string{"", "alice", strings.Repeat("é", 100)} {
			r := reservation(key)
			r.Scope = scope
			claim := own(t, s, r)
			_, err := s.Complete(t.Context(), claim, answer("body"))
			must(t, err)
			must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: r.ID, Actor: "eve", Action: "look", Reason: "why"}))
			must(t, s.AddExecution(t.Context(), store.ExecutionEntry{
				ID: r.ID, Operation: "POST /payments", Decision: store.DecisionExecute, Origin: store.OriginCreated,
			}))
			if n := number(t, admin, `SELECT COUNT(*) FROM onceward_records WHERE hash = ? AND scope = ? AND `+"`key`"+` = ?
				AND operation = 'POST /payments' AND state = 'completed' AND attempt = ? AND body_bytes = 4 AND lease_until IS NULL
				AND TIMESTAMPDIFF(SECOND, settled_at, expires_at) = 3600`, r.Hash(), scope, key, claim.Attempt); n != 1 {
				t.Errorf("scope %q, key %q: %d records", scope, key, n)
			}
			for _, view := range []string{"onceward_audit_log", "onceward_execution_log"} {
				if n := number(t, admin, `SELECT COUNT(*) FROM `+view+` WHERE scope = ? AND `+"`key`"+` = ?`, scope, key); n != 1 {
					t.Errorf("scope %q, key %q: %d entries in %s", scope, key, n, view)
				}
			}
		}
	}
}

// TestTestClock: the clock moves for the store, and is given back.
func TestTestClock(t *testing.T) {
	t.Parallel()
	s := openStore(t, mariadb(t))
	t.Run("moved", func(t *testing.T) {
		clock := mysql.NewTestClock(t, s)
		claim := own(t, s, reservation("key"))
		clock.Advance(2 * time.Minute)
		v, err := s.Reserve(t.Context(), reservation("key"))
		if err != nil || v.Decision != store.DecisionUnknown {
			t.Errorf("behind its lease the record is %s, %v", v.Decision, err)
		}
		_, err = s.Complete(t.Context(), claim, answer("late"))
		must(t, err)
		clock.Advance(2 * time.Hour)
		if reaped, err := s.Reap(t.Context(), 10, false); err != nil || reaped != 1 {
			t.Errorf("reaped %d, %v", reaped, err)
		}
	})
	v, err := s.Reserve(t.Context(), reservation("after"))
	if err != nil || time.Since(v.Now).Abs() > time.Minute {
		t.Errorf("the clock stands at %s (%v)", v.Now, err)
	}
}
