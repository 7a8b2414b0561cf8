package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// limitPages lets the file grow by so many pages and no more; negative lifts the limit.
func limitPages(t testing.TB, s *Store, more int) {
	t.Helper()
	inWriter(t, s, func(w *writer) error {
		pages := 0
		err := query(w.raw, `PRAGMA page_count`, func(*sqlite3.Stmt) error { return nil }, func(stmt *sqlite3.Stmt) error {
			pages = stmt.ColumnInt(0)
			return nil
		})
		if more < 0 {
			pages, more = 1<<30, 0
		}
		return errors.Join(err, w.raw.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+more)))
	})
}

var large = strings.Repeat("x", 100_000)

func wantFull(t testing.TB, err error, rule string) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("scenario 16: %s got %v, want ErrUnavailable that says that the disk is full", rule, err)
	}
}

// TestFullForTheStore: there is no room for the store's own row.
func TestFullForTheStore(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	grant, err := s.Reserve(t.Context(), insideReservation("owned"))
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: insideID("owned"), Attempt: grant.Record.Attempt}
	done := insideAnswer(large)
	limitPages(t, s, 0)
	for range 2 {
		_, err = s.Complete(t.Context(), claim, &done)
		wantFull(t, err, "complete")
		if state := stateOf(t, s, "owned"); state != store.StateInProgress {
			t.Errorf("the record is %s, want it as it was", state)
		}
		_, err = s.Transact(t.Context(), insideReservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
			settlement := insertAndCommit("key")(ctx, v)
			settlement.Completion = insideAnswer(large)
			return settlement
		})
		wantFull(t, err, "transact")
		if wantWhole(t, s, "key") {
			t.Error("the work is there without room for its answer")
		}
	}
	if err := s.Extend(t.Context(), claim, grant.Record.Retention); err != nil {
		t.Errorf("S5: a heartbeat needs no new page, but got %v", err)
	}
	limitPages(t, s, -1)
	if _, err = s.Complete(t.Context(), claim, &done); err != nil {
		t.Errorf("with room again complete got %v", err)
	}
	wantOnceMore(t, s, false)
}

// TestFullForTheHandler: the handler's own insert finds no room. SQLite may undo the whole transaction for that; what the
// handler does afterwards must not be kept either.
func TestFullForTheHandler(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	for _, end := range []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer} {
		limitPages(t, s, 3)
		var first, second error
		_, err := s.Transact(t.Context(), insideReservation("key"), func(ctx context.Context, _ store.Verdict) store.Settlement {
			tx := onceward.Tx(ctx)
			if _, err := tx.Exec(`INSERT INTO business VALUES ('key')`); err != nil {
				t.Error(err)
			}
			_, first = tx.Exec(`INSERT INTO business VALUES (?)`, large)
			_, second = tx.Exec(`INSERT INTO business VALUES ('late')`)
			return store.Settlement{Action: end, Completion: insideAnswer("done")}
		})
		if !errors.Is(first, sqlite3.FULL) {
			t.Errorf("the handler got %v, want that the disk is full", first)
		}
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("scenario 16: got %v, want ErrUnavailable", err)
		}
		if second == nil || rowsOf(t, s, "late") != 0 {
			t.Errorf("I4: after the transaction was lost the handler wrote on (%v), and %d rows stayed", second, rowsOf(t, s, "late"))
		}
		if wantWhole(t, s, "key") {
			t.Error("I4: the caller was told that nothing was executed, but it was")
		}
		limitPages(t, s, -1)
	}
	wantOnceMore(t, s, false)
}

// TestFullForOneOfAGroup: one handler finds no room, its neighbours do.
func TestFullForOneOfAGroup(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	limitPages(t, s, 8)
	letGo := holdWriter(t, s)
	runs := runGroup(t, s, []string{"before", "hungry", "after"}, func(ctx context.Context, key string) store.Settlement {
		value := key
		if key == "hungry" {
			value = large
		}
		return insertAndCommit(value)(ctx, store.Verdict{})
	}, letGo)
	for _, run := range runs {
		switch {
		case run.key == "hungry":
			if run.err == nil || rowsOf(t, s, large) != 0 {
				t.Errorf("the one that found no room got %v", run.err)
			}
		case run.err != nil || !wantWhole(t, s, run.key):
			t.Errorf("a neighbour got %v", run.err)
		}
	}
	err := s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO business VALUES (?)`, large)
		return err
	})
	if err == nil {
		t.Error("an update found room where there is none")
	}
}
