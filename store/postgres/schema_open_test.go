package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// objects lists all that a schema holds: tables, indexes, sequences, types and functions.
func objects(t testing.TB, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace
		UNION SELECT proname::text FROM pg_proc WHERE pronamespace = $1::regnamespace ORDER BY 1`, schema)
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return found
}

// wantOpenFails opens a store that is to be refused.
func wantOpenFails(t testing.TB, url, says string, options ...postgres.Option) {
	t.Helper()
	store, err := postgres.Open(t.Context(), url, append(options, quiet)...)
	if err == nil {
		must(t, store.Close())
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("opening got %v, want an error that says %q", err, says)
	}
}

// TestOpenAgain: what is up to date is not touched again, and keeps what is in it.
func TestOpenAgain(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	for round := range 3 {
		store := openStore(t, url)
		transacted(t, store, fmt.Sprint("key-", round), nothing)
		for earlier := range round {
			wantReplay(t, store, fmt.Sprint("key-", earlier), fmt.Sprint("key-", earlier), "I3")
		}
		must(t, store.Close())
		if n := number(t, admin, `SELECT count(*) FROM onceward_schema`); n != number(t, admin, `SELECT max(version) FROM onceward_schema`) {
			t.Errorf("%d migrations are noted", n)
		}
	}
}

// TestOpenAtOnce: many processes that start together on a new schema make one set of tables.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	var group sync.WaitGroup
	var won sync.Map
	for i := range 12 {
		group.Go(func() {
			s, err := postgres.Open(t.Context(), url, quiet)
			if err != nil {
				t.Errorf("one of several that open a new schema: %v", err)
				return
			}
			defer s.Close()
			v, err := s.Reserve(context.Background(), reservation("contended"))
			if err != nil {
				t.Errorf("reserve: %v", err)
			}
			if v.Decision == store.DecisionExecute {
				won.Store(i, true)
			}
		})
	}
	group.Wait()
	winners := 0
	won.Range(func(any, any) bool { winners++; return true })
	if winners != 1 {
		t.Errorf("S1: %d of those who opened at once got the same key", winners)
	}
}

// TestPlaces: everything is where it was asked for, and nothing elsewhere; two sets of tables live side by side.
func TestPlaces(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	admin := openAdmin(t, server.URL())
	unique := strings.ToLower(rand.Text()[:12]) // so that its tables can be looked for everywhere
	prefixes := []string{"a" + unique + "_", "b" + unique + "_"}
	for _, prefix := range prefixes {
		store := openStore(t, server.URL(), postgres.WithSchema(schema), postgres.WithTablePrefix(prefix))
		exercise(t, store, "key")
	}
	names := objects(t, admin, schema)
	for _, name := range names {
		if !strings.HasPrefix(name, prefixes[0]) && !strings.HasPrefix(name, prefixes[1]) {
			t.Errorf("%s has neither prefix", name)
		}
	}
	for _, name := range names {
		rest, first := strings.CutPrefix(name, prefixes[0])
		if first && !slices.Contains(names, prefixes[1]+rest) {
			t.Errorf("%s has no counterpart", name)
		}
	}
	if n := number(t, admin, `SELECT (SELECT count(*) FROM pg_class WHERE strpos(relname, $2) > 0 AND relnamespace <> $1::regnamespace)
		+ (SELECT count(*) FROM pg_proc WHERE strpos(proname, $2) > 0 AND pronamespace <> $1::regnamespace)`, schema, unique); n != 0 {
		t.Errorf("%d objects are outside of the schema", n)
	}
}

// TestOddNames: a schema whose name needs quotes is as good as another.
func TestOddNames(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t) + ` "Odd" $$`
	admin := openAdmin(t, server.URL())
	exec(t, admin, `CREATE SCHEMA `+pgx.Identifier{schema}.Sanitize())
	t.Cleanup(func() { exec(t, admin, `DROP SCHEMA `+pgx.Identifier{schema}.Sanitize()+` CASCADE`) })
	store := openStore(t, server.URL(), postgres.WithSchema(schema), postgres.WithTablePrefix("x"))
	exercise(t, store, "key")
	must(t, store.Close())
}

// TestWrongPlaces: what cannot be is refused in words that say what to do.
func TestWrongPlaces(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	url := server.SchemaURL(t)
	for _, prefix := range []string{"", "Upper_", "with space", "1st_", `quote"_`, "drop;", "ünicode_", strings.Repeat("x", 31)} {
		wantOpenFails(t, url, fmt.Sprintf("the table prefix %q", prefix), postgres.WithTablePrefix(prefix))
	}
	wantOpenFails(t, url, "no_such_schema", postgres.WithSchema("no_such_schema"))
	wantOpenFails(t, server.URL()+"&search_path=no_such_schema", "use WithSchema")
	openStore(t, url, postgres.WithTablePrefix(strings.Repeat("x", 30)))
}

func TestTooManyLanes(t *testing.T) {
	t.Parallel()
	wantOpenFails(t, servers.Postgres(t).SchemaURL(t), "lanes", postgres.WithLanes(1<<32))
}
