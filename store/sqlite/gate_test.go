package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

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
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	if n := len(s.waits.changed); n != 0 {
		t.Errorf("%d records are remembered that nobody waits for", n)
	}
}

// TestUnreadableHoldsUpNobody: records that cannot be read are at the head of the queue, and the others are swept all the
// same, batch by batch.
func TestUnreadableHoldsUpNobody(t *testing.T) {
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
