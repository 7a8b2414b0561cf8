package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
)

// TestFunctionsInPlace: what is asked often calls no SQL function. The server puts the text of a simple one in the place of
// its call when it plans; where it cannot, it parses and plans that text in every statement, and counts the call.
func TestFunctionsInPlace(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, url)
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	const name = "onceward: functions in place"
	config.ConnConfig.RuntimeParams["track_functions"] = "all"
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	store, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	for _, key := range keys("in place", 8) {
		c := own(t, store, reservation(key))
		must(t, store.Extend(t.Context(), c, time.Minute))
		complete(t, store, c, "done")
		wantReplay(t, store, key, "done", "I3")
		transacted(t, store, "transacted "+key, nothing)
		_, err := store.Get(t.Context(), c.ID)
		must(t, err)
	}
	_, err = store.Sweep(t.Context(), 1) // a function that is called, to see that calls are counted
	must(t, err)
	must(t, store.Close())
	pool.Close()
	for number(t, admin, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, name) > 0 {
		time.Sleep(10 * time.Millisecond) // a connection tells its counts when it ends
	}
	const calls = `SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions
		WHERE schemaname = current_schema() AND (funcname = 'onceward_sweep') = $1`
	if n := number(t, admin, calls, true); n != 1 {
		t.Fatalf("%d calls of a function were counted, want 1", n)
	}
	if n := number(t, admin, calls, false); n != 0 {
		t.Errorf("%d calls of SQL functions were left in hot statements, want none", n)
	}
}

// TestLongerRetention: the batch takes the greater of two retentions in microseconds for the longer one.
func TestLongerRetention(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	different := number(t, s.admin, `WITH sample AS (
			SELECT unnest(ARRAY[0, 1, -1, 2, 3599, 3600, 86400, -999999, -1000000, -1000001, -2000000, 2147483647, -2147483647]) AS r)
		SELECT count(*) FROM sample AS a, sample AS b
		WHERE onceward_span(onceward_longer(a.r, b.r)) <> greatest(onceward_span(a.r), onceward_span(b.r))`)
	if different != 0 {
		t.Errorf("%d pairs of retentions have a longer one that is not the greater", different)
	}
}
