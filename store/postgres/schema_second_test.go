package postgres_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// There is one migration so far. These tests hold the mechanism to what it does with a second one, which is invented.

const secondMigration = "00002_invented.sql"

// twoMigrations returns the migration that there is, and the invented one.
func twoMigrations(t testing.TB) fstest.MapFS {
	t.Helper()
	first, err := fs.ReadFile(postgres.Migrations(), onlyMigration)
	must(t, err)
	return fstest.MapFS{
		onlyMigration: {Data: first},
		secondMigration: {Data: []byte(`-- +goose Up
ALTER TABLE onceward_record ADD COLUMN of_a_later_version text;
INSERT INTO onceward_schema (version) VALUES (2);
`)},
	}
}

// TestSecondMigration: tables of version 1 are brought to version 2 while a program of version 1 runs, which continues
// (scenario 32). A program of version 1 that starts afterwards is refused, and changes nothing.
func TestSecondMigration(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	later := postgres.WithMigrations(twoMigrations(t))
	var schema string
	must(t, openAdmin(t, url).QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	check := func(want store.SchemaStatus, is error, options ...postgres.Option) {
		t.Helper()
		want.Place = fmt.Sprintf("schema %q, as onceward_…", schema)
		status, err := postgres.Status(t.Context(), url, options...)
		if must(t, err); !reflect.DeepEqual(status, want) || !errors.Is(status.Err(), is) {
			t.Errorf("the status is %+v (%v), want %+v (%v)", status, status.Err(), want, is)
		}
	}
	check(store.SchemaStatus{Wanted: 1, Pending: []string{onlyMigration}}, store.ErrSchemaMissing)

	running := openStore(t, url)
	own(t, running, reservation("before"))
	check(store.SchemaStatus{Wanted: 1, Version: 1, Pending: []string{}}, nil)
	check(store.SchemaStatus{Wanted: 2, Version: 1, Pending: []string{secondMigration}}, store.ErrSchemaOlder, later)
	wantOpenFails(t, url, "are of version 1, and this program needs version 2: apply "+secondMigration,
		later, postgres.WithManualMigration())

	must(t, postgres.Migrate(t.Context(), url, quiet, later))
	check(store.SchemaStatus{Wanted: 2, Version: 2, Pending: []string{}}, nil, later)
	check(store.SchemaStatus{Wanted: 1, Version: 2, Pending: []string{}}, store.ErrSchemaNewer)
	exercise(t, running, "running")
	started := openStore(t, url, later)
	exercise(t, started, "started")
	wantReplay(t, started, "running committed", "running committed", "scenario 32")
	wantReplay(t, running, "started committed", "started committed", "scenario 32")
	for _, options := range [][]postgres.Option{nil, {postgres.WithManualMigration()}} {
		wantOpenFails(t, url, "are of version 2, and this program knows version 1: use a newer program", options...)
	}
	if n := number(t, openAdmin(t, url), `SELECT count(*) FROM onceward_schema`); n != 2 {
		t.Errorf("%d versions are noted, want 2 as before", n)
	}
}

// TestPlainSQL: what is printed for people makes the same tables as the store, from every version on, and refuses
// tables of another version without a change.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	ours, files := server.SchemaURL(t), twoMigrations(t)
	later := postgres.WithMigrations(files)
	openStore(t, ours, later)
	want := tables(t, openAdmin(t, ours))
	for from := range 2 {
		schema := server.Schema(t)
		admin := openAdmin(t, server.URL()+"&search_path="+schema)
		if from == 1 {
			migrate(t, admin)
		}
		text, err := postgres.PlainSQLOf(files, schema, "", from)
		must(t, err)
		psql(t, server.URL(), text) // which has another search_path
		if made := tables(t, admin); !slices.Equal(made, want) {
			t.Errorf("from version %d it makes\n%v\nthe store makes\n%v", from, made, want)
		}
		exercise(t, openStore(t, server.URL(), later, postgres.WithSchema(schema), postgres.WithManualMigration()), "key")
		if out, err := tryPSQL(t, server.URL(), text); err == nil || !strings.Contains(out, "of version 2") {
			t.Errorf("run again it says %q (%v)", out, err)
		}
		if made := tables(t, admin); !slices.Equal(made, want) {
			t.Errorf("run again it makes %v", made)
		}
	}
	for _, from := range []int{-1, 1} {
		if _, err := postgres.PlainSQL("", "", from); err == nil {
			t.Errorf("there are migrations after version %d", from)
		}
	}
	prefixed := server.SchemaURL(t)
	text, err := postgres.PlainSQL("", "own_", 0)
	must(t, err)
	psql(t, prefixed, text)
	exercise(t, openStore(t, prefixed, postgres.WithTablePrefix("own_"), postgres.WithManualMigration()), "key")
}

// TestOlderTables: tables that were left behind are not used by chance.
func TestOlderTables(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	exec(t, openAdmin(t, url), `DELETE FROM onceward_schema`)
	wantOpenFails(t, url, "there are no tables in", postgres.WithManualMigration())
}

// TestTablesMissing: half a set of tables is refused, and the error names what is not there.
func TestTablesMissing(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	must(t, openStore(t, url).Close())
	exec(t, openAdmin(t, url), `DROP TABLE onceward_record CASCADE`)
	wantOpenFails(t, url, "onceward_record")
}
