package postgres_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// lockOf is the key of the advisory lock that the record of a key has.
func lockOf(store *postgres.Store, key string) int64 {
	id, err := hex.DecodeString(strings.ReplaceAll(store.RecordID(accountID(key)), "-", ""))
	if err != nil {
		panic(err) // it is a UUID
	}
	return int64(binary.BigEndian.Uint64(id))
}

const takeLock = `SELECT pg_advisory_lock($1)`

// queueForLock has a session of its own wait for a lock that is taken. It gets the lock when that is free, and keeps it.
func queueForLock(t testing.TB, s *site, lock int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.url)
	must(t, err)
	pid := int32(conn.PgConn().PID())
	ctx, leave := context.WithCancel(context.Background())
	var session sync.WaitGroup
	session.Go(func() {
		_, _ = conn.Exec(ctx, takeLock, lock) // it may be put out while it waits
		<-ctx.Done()
		_ = conn.Close(context.Background())
	})
	t.Cleanup(func() {
		leave()
		session.Wait()
	})
	eventually(t, "the session waits for the lock", 10*time.Second, func() (waits bool) {
		must(t, s.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1)`,
			pid).Scan(&waits))
		return waits
	})
}

// looksAtLock finds the statement by which a store that waits looks whether the lock is held.
var looksAtLock = matching(`pg_locks`)

func unlock(t testing.TB, conn *pgx.Conn, lock int64) {
	t.Helper()
	var held bool
	must(t, conn.QueryRow(t.Context(), `SELECT pg_advisory_unlock($1)`, lock).Scan(&held))
	if !held {
		t.Fatal("the lock was not held")
	}
}

// TestLockThatCollides has somebody else hold the lock of a key, as another key with the same hash would.
func TestLockThatCollides(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			st := s.store(t, h, s.url)
			route := payingRoute(t, h, st)
			other := connect(t, s.url)
			lock := lockOf(st, "key")
			_, err := other.Exec(t.Context(), takeLock, lock)
			must(t, err)
			for range 2 {
				post(route, "key").wantProblem(t, http.StatusConflict, "in-progress", "scenario 8")
			}
			post(route, "another").want(t, http.StatusCreated, false, "scenario 8: nobody else waits")
			s.wantRows(t, "key", 0, "scenario 8")
			wantStateOf(t, st, "key", store.StateNone, "scenario 8")
			unlock(t, other, lock)
			first := post(route, "key")
			first.want(t, http.StatusCreated, false, "scenario 8: it only took longer")
			_, err = other.Exec(t.Context(), takeLock, lock)
			must(t, err)
			again := post(route, "key")
			again.want(t, http.StatusCreated, true, "E1: without the lock, what is there is replayed")
			if again.body != first.body {
				t.Errorf("I3: got %q, and then %q", first.body, again.body)
			}
			s.wantRows(t, "key", 1, "I1")
		})
	}
}

// TestLockThatCollidesWhileWaiting has a duplicate that waits get its turn when the lock is free.
func TestLockThatCollidesWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	store := s.store(t, pgxHandle, proxy.URL())
	route := payingRoute(t, pgxHandle, store, onceward.InFlightWait(30*time.Second))
	other := connect(t, s.url)
	lock := lockOf(store, "key")
	_, err := other.Exec(t.Context(), takeLock, lock)
	must(t, err)
	looked := proxy.HoldReply(looksAtLock)
	defer looked()
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	awaitCaught(t, proxy, 1)
	looked()
	unlock(t, other, lock)
	await(t, "the answer", done).want(t, http.StatusCreated, false, "scenario 8")
	s.wantRows(t, "key", 1, "I1")
}
