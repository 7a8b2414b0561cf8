package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
)

// ground is a schema with the tables of a store, a business table and a clock that only the test moves. To make one and
// to remove it costs a server more than most tests of the suite do, and the suite wants hundreds: so one test has it
// after another, with the store that the test before has opened, and each finds it as if it were new.
type ground struct {
	run testing.TB
	// url is for the stores. Their sessions have the name of the schema, so that their end can be awaited.
	url, schema string
	// admin looks past every store.
	admin *pgxpool.Pool
	// user is the test that had it last.
	user string
	// store is open on it, unless a test has failed or closed it.
	store *postgres.Store
	close func()
}

// grounds are those of one run of the suite.
type grounds struct {
	run testing.TB
	// made is how their tables are made.
	made []postgres.Option
	// place says where the next is: for the stores, and for those who look past them.
	place func(t, run testing.TB) (url, admin string)

	mu   sync.Mutex
	idle []*ground
}

// take hands out a ground that is empty, and takes it back at the end of the test. The one that has been idle for
// longest comes first, and the last one stays: the sessions of its last test may still be ending.
func (g *grounds) take(t testing.TB) *ground {
	t.Helper()
	g.mu.Lock()
	var taken *ground
	if len(g.idle) > 1 {
		taken, g.idle = g.idle[0], g.idle[1:]
	}
	g.mu.Unlock()
	if taken == nil {
		taken = newGround(t, g)
	} else {
		taken.clear(t)
	}
	taken.user = t.Name()
	t.Cleanup(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.idle = append(g.idle, taken)
	})
	return taken
}

// newGround makes a ground that lasts as long as the run.
func newGround(t testing.TB, among *grounds) *ground {
	t.Helper()
	run := among.run
	url, past := among.place(t, run)
	admin, err := pgxpool.New(context.Background(), past)
	must(t, err)
	run.Cleanup(admin.Close)
	var schema string
	must(t, admin.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
	g := &ground{run: run, url: url + "&application_name=" + schema, schema: schema, admin: admin}
	run.Cleanup(g.shut)
	openStore(t, g.url, among.made...) // makes the tables
	exec(t, admin, `CREATE TABLE business (value TEXT NOT NULL)`)
	exec(t, admin, `CREATE TABLE test_clock (at bigint NOT NULL)`)
	exec(t, admin, `INSERT INTO test_clock VALUES (`+firstMoment+`)`)
	exec(t, admin, fmt.Sprintf(
		`CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT at FROM %s.test_clock'`, schema))
	return g
}

// onSharedServer has a ground in a schema of its own.
func onSharedServer(t, run testing.TB) (url, admin string) {
	url = servers.Postgres(t).SchemaURL(run)
	return url, url
}

// sql returns a pool of database/sql that looks past every store. Its transactions are isolated as those of the stores'
// URL are.
func (g *ground) sql(t testing.TB) *sql.DB {
	const level = "default_transaction_isolation"
	stores, err := pgx.ParseConfig(g.url)
	must(t, err)
	config := g.admin.Config().ConnConfig.Copy()
	if set := stores.RuntimeParams[level]; set != "" {
		config.RuntimeParams[level] = set
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// shut closes the store.
func (g *ground) shut() {
	if g.store != nil {
		g.close()
		g.store = nil
	}
}

// open returns the store, which is opened if it is not open.
func (g *ground) open(t testing.TB, h handle) *postgres.Store {
	t.Helper()
	if g.store == nil {
		opened, closeHandle := h.open(t, g.url)
		g.store, g.close = opened, func() {
			must(g.run, opened.Close())
			closeHandle()
		}
	}
	return g.store
}

// firstMoment is when the first test begins, in microseconds since 1970. The clock is not set back: a store may have
// handed out its times.
const firstMoment = `1767323045000000`

// clearing removes what a test has left: the rows of all tables, where the sequences stand, and the tables that the
// test has made. What the migrations have written stays.
const clearing = `DO $$
DECLARE
	name name;
BEGIN
	PERFORM setval(oid, 1, false) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'S';
	FOR name IN SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' LOOP
		CASE
			WHEN name IN ('test_clock', 'onceward_schema') THEN NULL;
			WHEN name = 'onceward_record' THEN DELETE FROM onceward_record WHERE state <> 0; -- the ballast has state 0
			WHEN name = 'business' OR starts_with(name, 'onceward_') THEN EXECUTE format('DELETE FROM %I', name);
			ELSE EXECUTE format('DROP TABLE %I CASCADE', name);
		END CASE;
	END LOOP;
END $$`

// clear makes a ground as if it were new. No session of the test before may be at work then: it would write afterwards.
func (g *ground) clear(t testing.TB) {
	t.Helper()
	await.That(t, "the sessions of "+g.user+" have ended or are idle", func() bool {
		return number(t, g.admin, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle'`, g.schema) == 0
	})
	exec(t, g.admin, clearing)
}

// advance moves the clock.
func (g *ground) advance(t testing.TB, d time.Duration) {
	t.Helper()
	exec(t, g.admin, `UPDATE test_clock SET at = at + $1`, d.Microseconds())
}
