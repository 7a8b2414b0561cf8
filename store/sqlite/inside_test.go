package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// openInside opens a store for tests that look inside.
func openInside(t testing.TB, path string, options ...Option) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	createBusiness(t, s)
	return s
}

func createBusiness(t testing.TB, s *Store) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`CREATE TABLE IF NOT EXISTS business (value TEXT NOT NULL)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func insidePath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "inside.db")
}

func insideID(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

func insideReservation(key string) *store.Reservation {
	r := &store.Reservation{
		ID: insideID(key), Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1}},
		Lease: time.Minute, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

func insideAnswer(body string) store.Completion {
	return store.Completion{Response: store.Response{Status: 201, Body: []byte(body)}}
}

// insertAndCommit is work that writes a row.
func insertAndCommit(value string) func(context.Context, store.Verdict) store.Settlement {
	return func(ctx context.Context, _ store.Verdict) store.Settlement {
		if _, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES (?)`, value); err != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: insideAnswer(value)}
	}
}

func rowsOf(t testing.TB, s *Store, value string) (n int) {
	t.Helper()
	if err := s.DB().QueryRow(`SELECT count(*) FROM business WHERE value = ?`, value).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func stateOf(t testing.TB, s *Store, key string) store.State {
	t.Helper()
	rec, err := s.Get(t.Context(), insideID(key))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return rec.State
}

// inWriter runs f on the writer's connection, where it belongs.
func inWriter(t testing.TB, s *Store, f func(w *writer) error) {
	t.Helper()
	if err := s.writer.do(t.Context(), newFunction(func(*records, time.Time) error { return f(s.writer) })); err != nil {
		t.Fatal(err)
	}
}

// holdWriter keeps the writer in a turn until the test lets go, so that what comes meanwhile ends up in one group.
func holdWriter(t testing.TB, s *Store) (letGo func()) {
	t.Helper()
	held, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Update(context.Background(), func(*sql.Tx) error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	return func() {
		t.Helper()
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// awaitQueue waits until so many tasks have gathered behind the one that runs.
func awaitQueue(t testing.TB, s *Store, n int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		s.writer.mu.Lock()
		queued := len(s.writer.queue)
		s.writer.mu.Unlock()
		if queued == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tasks are queued, want %d", queued, n)
		}
		runtime.Gosched()
	}
}
