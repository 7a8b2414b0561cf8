package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
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
	if err := s.writer.do(t.Context(),
		newFunction(func(*records, time.Time) error { return f(s.writer) })); err != nil {
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
	for end := time.Now().Add(await.Limit); ; runtime.Gosched() {
		s.writer.mu.Lock()
		queued := len(s.writer.queue)
		s.writer.mu.Unlock()
		if queued == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d tasks are queued, want %d", queued, n)
		}
	}
}

// TestGateAfterItsTurn: whatever a handler has kept of its connection does not touch it any more, not even to close.
func TestGateAfterItsTurn(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	ctx := context.Background()
	var g *gate
	var stmt *gatedStmt
	var rows driver.Rows
	err := s.Update(ctx, func(*sql.Tx) error {
		g = s.writer.gate
		prepared, err := g.Prepare(`INSERT INTO business VALUES ('late') RETURNING value`)
		if err != nil {
			return err
		}
		stmt = prepared.(*gatedStmt)
		rows, err = stmt.QueryContext(ctx, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, execErr := g.ExecContext(ctx, `INSERT INTO business VALUES ('late')`, nil)
	_, prepareErr := g.Prepare(`SELECT 1`)
	_, stmtErr := stmt.ExecContext(ctx, nil)
	_, queryErr := stmt.QueryContext(ctx, nil)
	for i, err := range []error{execErr, prepareErr, stmtErr, queryErr, rows.Next(make([]driver.Value, 1))} {
		if !errors.Is(err, errRevoked) {
			t.Errorf("late call %d got %v, want errRevoked", i, err)
		}
	}
	if err := errors.Join(rows.Close(), stmt.Close(), g.Close()); err != nil {
		t.Errorf("closing late got %v", err)
	}
	if len(rows.Columns()) != 1 || stmt.NumInput() != 0 {
		t.Error("what was known of the rows is forgotten")
	}
	gated := rows.(*gatedRows)
	if name := gated.ColumnTypeDatabaseTypeName(0); name != "" {
		t.Errorf("late rows were asked for their types, and said %s", name)
	}
	if n := rowsOf(t, s, "late"); n != 0 {
		t.Errorf("%d late rows", n)
	}
}

// TestGateTracksStatements: a handler of many statements does not gather them.
func TestGateTracksStatements(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		for i := range 200 {
			if _, err := tx.Exec(`INSERT INTO business VALUES (?)`, i); err != nil {
				return err
			}
		}
		if n := len(s.writer.gate.stmts); n != 0 {
			t.Errorf("%d statements are remembered", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWaitersAreForgotten: who has waited leaves nothing behind, however its wait ended.
func TestWaitersAreForgotten(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	var group sync.WaitGroup
	for i := range 20 {
		grant, err := s.Reserve(t.Context(), insideReservation(fmt.Sprint("key-", i)))
		if err != nil {
			t.Fatal(err)
		}
		claim := store.Claim{ID: insideID(fmt.Sprint("key-", i)), Attempt: grant.Record.Attempt}
		group.Go(func() {
			brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := s.Wait(brief, claim.ID, claim.Attempt); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := s.Wait(t.Context(), claim.ID, claim.Attempt); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			done := insideAnswer("done")
			if _, err := s.Complete(t.Context(), claim, &done); err != nil {
				t.Error(err)
			}
			if err := s.Wait(t.Context(), claim.ID, claim.Attempt); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := s.waits.Len(); n != 0 {
		t.Errorf("%d records are remembered that no caller waits for", n)
	}
}

// TestReservedMeanwhile: a record that was absent when a reader looked, and is there when the writer does, is found by
// the writer: a key that another process has reserved in between is not executed.
func TestReservedMeanwhile(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	first, err := s.Reserve(t.Context(), insideReservation("key"))
	if err != nil || first.Decision != store.DecisionExecute {
		t.Fatalf("%v, %v", first.Decision, err)
	}
	late := insideReservation("key")
	task := newTask(late.ID, store.Event{Kind: store.EventReserve, Reservation: late})
	task.absent = true
	if err := s.writer.do(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if v := task.Verdict(); v.Decision != store.DecisionInProgress || v.Record.Attempt != first.Record.Attempt {
		t.Errorf("S1: %v of attempt %d, want the reservation of before", v.Decision, v.Record.Attempt)
	}
}

// TestUnreadableHoldsUpNone: records that cannot be read are at the head of the queue, and the others are swept all the
// same, batch by batch.
func TestUnreadableHoldsUpNone(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var mu sync.Mutex
	s := openInside(t, insidePath(t), WithClock(func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Millisecond)
		return now
	}))
	for i := range 9 {
		if _, err := s.Reserve(t.Context(), insideReservation(fmt.Sprint("key-", i))); err != nil {
			t.Fatal(err)
		}
	}
	inWriter(t, s, func(w *writer) error {
		return w.raw.Exec(`UPDATE onceward_record SET record = x'ff' WHERE rowid <= 2`)
	})
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	swept := 0
	for {
		n, err := s.Sweep(t.Context(), 4)
		swept += n
		if n < 4 {
			if !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("S8: the last batch got %v, want to hear of what cannot be read", err)
			}
			break
		}
		if err != nil {
			t.Fatalf("a full batch got %v", err)
		}
	}
	if swept != 7 {
		t.Errorf("B1: %d of 7 records were swept", swept)
	}
}

// TestKeyOfAViewOfMemory: an ID whose strings are views of memory that is used again is not taken for the one that was
// there before.
func TestKeyOfAViewOfMemory(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	memory := []byte("key-A")
	r := insideReservation(unsafe.String(&memory[0], len(memory)))
	v, err := s.Reserve(t.Context(), r)
	if err == nil {
		_, err = s.Complete(t.Context(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, &store.Completion{
			Response: store.Response{Status: 200, Body: []byte("answer of A")},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	copy(memory, "key-B")
	if v, err := s.Reserve(t.Context(), r); err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("I9: a new key got %s, %q, %v", v.Decision, v.Record.Response.Body, err)
	}
	if rec, err := s.Get(t.Context(), insideID("key-A")); err != nil || rec.State != store.StateCompleted {
		t.Errorf("I7: the first is %s, %v", rec.State, err)
	}
}
