package sqlite

import (
	"context"
	"database/sql"
	"runtime"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// neighbours checks that the others of a group were executed once, and told so.
func neighbours(t *testing.T, s *Store, all []*groupRun, culprit string) {
	t.Helper()
	for _, run := range all {
		if run.key == culprit {
			continue
		}
		if run.err != nil || run.v.Decision != store.DecisionExecute {
			t.Errorf("neighbour %s got (%s, %v)", run.key, run.v.Decision, run.err)
		}
		if !wantWhole(t, s, run.key) {
			t.Errorf("I2: neighbour %s was acknowledged but is not there", run.key)
		}
		if n := run.runs.Load(); n > 2 {
			t.Errorf("neighbour %s ran %d times, want once, and once more after a rollback", run.key, n)
		}
	}
}

// culprits are members that end badly, each in its own way, with what they are told.
var culprits = map[string]struct {
	body func(ctx context.Context) store.Settlement
	fine bool // whether it gets no error
}{
	"rolls back": {fine: true, body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		return store.Settlement{Action: store.TxRollback}
	}},
	"panics": {body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		panic("on purpose")
	}},
	"leaves its goroutine": {fine: true, body: func(ctx context.Context) store.Settlement {
		insertAndCommit("culprit")(ctx, store.Verdict{})
		runtime.Goexit()
		return store.Settlement{}
	}},
	"asks for a rollback": {body: func(ctx context.Context) store.Settlement {
		_, _ = onceward.Tx(ctx).Exec(`CREATE TABLE once (value TEXT UNIQUE ON CONFLICT ROLLBACK)`)
		_, _ = onceward.Tx(ctx).Exec(`INSERT INTO once VALUES ('x'), ('x')`)
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"is interrupted": {body: func(ctx context.Context) store.Settlement {
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		_, _ = onceward.Tx(ctx).ExecContext(short, endlessInsert)
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"breaks a deferred foreign key": {body: func(ctx context.Context) store.Settlement {
		_, _ = onceward.Tx(ctx).Exec(`INSERT INTO child VALUES (7)`)
		return insertAndCommit("culprit")(ctx, store.Verdict{})
	}},
	"has no answer": {body: func(ctx context.Context) store.Settlement {
		settlement := insertAndCommit("culprit")(ctx, store.Verdict{})
		settlement.Completion = store.Completion{}
		return settlement
	}},
}

// endlessInsert runs until it is interrupted.
const endlessInsert = `INSERT INTO business WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT 'endless' FROM n`

// TestBadNeighbour puts each culprit between others, first and last, and behind another culprit.
func TestBadNeighbour(t *testing.T) {
	t.Parallel()
	for name, culprit := range culprits {
		for place, keys := range map[string][]string{
			"first": {"culprit", "a", "b"}, "middle": {"a", "culprit", "b"}, "last": {"a", "b", "culprit"},
		} {
			t.Run(name+"/"+place, func(t *testing.T) {
				t.Parallel()
				s := openInside(t, insidePath(t))
				err := s.Update(t.Context(), func(tx *sql.Tx) error {
					_, err := tx.Exec(`CREATE TABLE parent (id INTEGER PRIMARY KEY);
						CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				letGo := holdWriter(t, s)
				all := runGroup(t, s, keys, func(ctx context.Context, key string) store.Settlement {
					if key == "culprit" {
						return culprit.body(ctx)
					}
					return insertAndCommit(key)(ctx, store.Verdict{})
				}, letGo)
				neighbours(t, s, all, "culprit")
				for _, run := range all {
					if run.key == "culprit" && (run.err == nil) != culprit.fine {
						t.Errorf("the culprit got %v", run.err)
					}
				}
				if wantWhole(t, s, "culprit") || rowsOf(t, s, "endless") != 0 {
					t.Error("I4: something of the culprit stayed")
				}
				if v, err := s.Transact(t.Context(), insideReservation("culprit"), insertAndCommit("culprit")); err != nil || v.Decision != store.DecisionExecute {
					t.Errorf("E1: the culprit's retry got (%s, %v)", v.Decision, err)
				}
				if !wantWhole(t, s, "culprit") {
					t.Error("E1: the culprit's retry is not there")
				}
			})
		}
	}
}

// TestPanicThenSpoiled: a member whose goroutine has gone is not waited for when its group is run again.
func TestPanicThenSpoiled(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	letGo := holdWriter(t, s)
	all := runGroup(t, s, []string{"a", "panics", "exits", "spoils", "b"}, func(ctx context.Context, key string) store.Settlement {
		switch key {
		case "panics":
			panic("on purpose")
		case "exits":
			runtime.Goexit()
		case "spoils":
			return culprits["asks for a rollback"].body(ctx)
		}
		return insertAndCommit(key)(ctx, store.Verdict{})
	}, letGo)
	for _, run := range all {
		if run.key == "a" || run.key == "b" {
			neighbours(t, s, []*groupRun{run}, "")
		} else if wantWhole(t, s, run.key) {
			t.Errorf("%s was executed", run.key)
		}
	}
}

// TestUpdatePanics: also outside of a protected handler.
func TestUpdatePanics(t *testing.T) {
	t.Parallel()
	s := openInside(t, insidePath(t))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = s.Update(t.Context(), func(tx *sql.Tx) error {
			_, _ = tx.Exec(`INSERT INTO business VALUES ('update')`)
			panic("on purpose")
		})
	}()
	wantOnceMore(t, s, false)
	if n := rowsOf(t, s, "update"); n != 0 {
		t.Errorf("%d rows of an update that panicked", n)
	}
}
