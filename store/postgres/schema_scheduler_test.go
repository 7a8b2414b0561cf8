package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// lapsed makes records for each key that the sweeper and the reaper are to find.
func lapsed(t testing.TB, store *postgres.Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		lost, old := reservation(key+" lost"), reservation(key+" old")
		lost.Lease, old.Retention = time.Microsecond, time.Microsecond
		own(t, store, lost)
		complete(t, store, own(t, store, old), "done")
	}
}

// TestScheduler: a scheduler that knows no more than SQL does what the methods do, from whatever schema it calls.
func TestScheduler(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	schema := server.Schema(t)
	s := openStore(t, server.URL(), postgres.WithSchema(schema))
	scheduler := openAdmin(t, server.URL())
	lapsed(t, s, "first", "second")
	own(t, s, reservation("alive"))
	complete(t, s, own(t, s, reservation("kept")), "done")
	if n := number(t, scheduler, `SELECT count(*) FROM `+schema+`.onceward_sweep()`); n != 2 {
		t.Errorf("section 7: onceward_sweep() found %d records, want 2", n)
	}
	for _, want := range []int{1, 1, 0} {
		if n := number(t, scheduler, `SELECT `+schema+`.onceward_reap(1)`); n != want {
			t.Errorf("section 7: onceward_reap(1) removed %d records, want %d", n, want)
		}
	}
	for key, want := range map[string]store.State{
		"first lost": store.StateUnknown, "second lost": store.StateUnknown, "first old": store.StateNone,
		"second old": store.StateNone, "alive": store.StateInProgress, "kept": store.StateCompleted,
	} {
		wantState(t, s, key, want, "section 7")
	}
	rec, err := s.Get(t.Context(), idOf("first lost"))
	if err != nil || rec.LastError != "lease ran out" || rec.ReconcileAt.IsZero() ||
		!rec.SettledAt.Equal(rec.ReconcileAt) {
		t.Errorf("section 7: what a scheduler swept says (%q, lost %s, due %s, %v)",
			rec.LastError, rec.SettledAt, rec.ReconcileAt, err)
	}
}

// TestSchedulerReapsSoftly: what is marked expired says so, and goes a retention later.
func TestSchedulerReapsSoftly(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, scheduler := openStore(t, url), openAdmin(t, url)
	r := reservation("old")
	clock := postgres.NewTestClock(t, s)
	c := own(t, s, r)
	complete(t, s, c, "done")
	soft := func() int { return number(t, scheduler, `SELECT onceward_reap(10, true)`) }
	clock.Advance(2 * time.Hour) // the answer is kept for an hour
	if n := soft(); n != 1 {
		t.Errorf("section 7: %d records were marked, want 1", n)
	}
	rec, err := s.Get(t.Context(), r.ID)
	if err != nil || rec.State != store.StateExpired || rec.Attempt != c.Attempt || rec.Response.Status != 0 ||
		rec.SettledAt.IsZero() {
		t.Errorf("section 7: the tombstone is %+v (%v)", rec, err)
	}
	clock.Advance(2 * time.Hour)
	if n := soft(); n != 1 {
		t.Errorf("section 7: %d tombstones were removed, want 1", n)
	}
	wantState(t, s, "old", store.StateNone, "section 7")
	if again := own(t, s, reservation("old")); again.Attempt <= c.Attempt {
		t.Errorf("S7: attempt %d after %d", again.Attempt, c.Attempt)
	}
}

// TestBackgroundWaitsForNobody: rows that another session holds are left to it, and the rest is done at once.
func TestBackgroundWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	store, admin := openStore(t, url), openAdmin(t, url)
	lapsed(t, store, "held", "free")
	held := []string{store.RecordID(idOf("held lost")), store.RecordID(idOf("held old"))}
	tx, err := admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	var n int
	must(t, tx.QueryRow(t.Context(),
		`SELECT count(*) FROM (SELECT FROM onceward_record WHERE id::text = ANY ($1) FOR UPDATE) AS locked`, held).Scan(&n))
	wantDone(t, store, 1, "while others are held")
	wantDone(t, store, 0, "while the rest is held")
	must(t, tx.Rollback(t.Context()))
	wantDone(t, store, 1, "when it is free")
	if n != 2 {
		t.Errorf("the test held %d rows, want 2", n)
	}
}

// wantDone sweeps and reaps.
func wantDone(t *testing.T, store *postgres.Store, want int, when string) {
	t.Helper()
	swept, err := store.Sweep(t.Context(), 10)
	if err != nil || swept != want {
		t.Errorf("section 7: swept (%d, %v) %s, want %d", swept, err, when, want)
	}
	reaped, err := store.Reap(t.Context(), 10, false)
	if err != nil || reaped != want {
		t.Errorf("section 7: reaped (%d, %v) %s, want %d", reaped, err, when, want)
	}
}

// TestTwoSweepers: two who sweep at once share the work (scenario 7).
func TestTwoSweepers(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	store, admin := openStore(t, url), openAdmin(t, url)
	lapsed(t, store, keys("key", 10)...)
	ctx := t.Context()
	total := 0
	for range 2 { // each in a transaction that holds what it found, as if it were slow
		tx, err := admin.Begin(ctx)
		must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		var n int
		must(t, tx.QueryRow(ctx, `SELECT count(*) FROM onceward_sweep(6)`).Scan(&n))
		total += n
	}
	if total != 10 {
		t.Errorf("scenario 7: two sweepers found %d records, want 10 between them", total)
	}
}
