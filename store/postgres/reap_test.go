package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// expired makes records whose answers have expired.
func expired(t testing.TB, s store.Store, names ...string) {
	t.Helper()
	for _, key := range names {
		r := reservation(key)
		r.Retention = time.Microsecond
		complete(t, s, own(t, s, r), "done")
	}
}

// TestReapInBatches: what a call leaves because it has removed so many is for the next one.
func TestReapInBatches(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers.Postgres(t).SchemaURL(t))
	expired(t, s, keys("expired", 25)...)
	complete(t, s, own(t, s, reservation("kept")), "done")
	for call, want := range []int{10, 10, 5, 0} {
		if n, err := s.Reap(t.Context(), 10, false); err != nil || n != want {
			t.Errorf("B2: call %d reaped (%d, %v), want %d", call, n, err, want)
		}
	}
	wantState(t, s, "kept", store.StateCompleted, "I2")
}

// TestReapAllStates: answers, releases and tombstones go when they have expired, the oldest answers first.
func TestReapAllStates(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers.Postgres(t).SchemaURL(t))
	expired(t, s, "answered")
	released, rejected := reservation("released"), reservation("rejected")
	released.Retention, rejected.Retention = time.Microsecond, time.Microsecond
	must(t, s.Release(t.Context(), own(t, s, released), "no stock"))
	must(t, s.Reject(t.Context(), own(t, s, rejected)))
	own(t, s, reservation("in progress"))
	must(t, s.Abandon(t.Context(), own(t, s, reservation("unknown")), "no reply"))
	for _, key := range []string{"answered", "released", "rejected", ""} {
		want := 1
		if key == "" {
			want = 0
		}
		if n, err := s.Reap(t.Context(), 1, false); err != nil || n != want {
			t.Errorf("B2: reaped (%d, %v), want %d", n, err, want)
		}
		if key != "" {
			wantState(t, s, key, store.StateNone, "B2")
		}
	}
	wantState(t, s, "in progress", store.StateInProgress, "I2")
	wantState(t, s, "unknown", store.StateUnknown, "I2")
}

// TestTwoReapers: two who reap at once share the work, neither waits, and what a reaper that was undone had removed is
// there again.
func TestTwoReapers(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	expired(t, s, keys("expired", 10)...)
	tx, err := admin.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }() // if it was not reached below
	var n int
	must(t, tx.QueryRow(t.Context(), `SELECT onceward_reap(6)`).Scan(&n))
	if n != 6 {
		t.Errorf("B2: the first removed %d, want 6", n)
	}
	if n, err := s.Reap(t.Context(), 10, false); err != nil || n != 4 {
		t.Errorf("B2: the second reaped (%d, %v) meanwhile, want the other 4", n, err)
	}
	must(t, tx.Rollback(t.Context()))
	if n, err := s.Reap(t.Context(), 10, false); err != nil || n != 6 {
		t.Errorf("B2: afterwards it reaped (%d, %v), want 6", n, err)
	}
}

// TestCounts: records are counted in all states, and ballast is not.
func TestCounts(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	want := map[store.State]int64{}
	for i, state := range []int{10, 11, 20, 20, 20, 30, 40, 41, 50} {
		exec(t, admin, fmt.Sprintf(`INSERT INTO onceward_record (id, attempt, due, retention, state, version, fingerprint, operation, scope, key)
			VALUES (md5('%d')::uuid, 1, 1, 1, %d, 1, '', '', '', '')`, i, state))
		want[store.State(state/10)]++
	}
	stats, err := s.Stats(t.Context())
	must(t, err)
	for state, n := range want {
		if stats.Records[state] != n {
			t.Errorf("section 11: %d records are %s, want %d", stats.Records[state], state, n)
		}
	}
	if stats.DeadLetters != 1 {
		t.Errorf("section 11: %d dead letters, want 1", stats.DeadLetters)
	}
}
