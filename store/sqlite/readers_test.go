package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// TestReadingPool: it reads what is committed, and does not write, whatever transactions were made on it before.
func TestReadingPool(t *testing.T) {
	t.Parallel()
	store := openBusiness(t, newFile(t))
	exec(t, store, `INSERT INTO business VALUES ('row')`)
	db := store.DB()
	db.SetMaxOpenConns(1) // the same connection each time
	refused := func(rule string) {
		t.Helper()
		for _, statement := range []string{
			`INSERT INTO business VALUES ('x')`, `UPDATE business SET value = 'x'`, `DELETE FROM business`,
			`CREATE TABLE x (y)`, `DROP TABLE business`, `DELETE FROM onceward_record`,
		} {
			if _, err := db.Exec(statement); !errors.Is(err, sqlite3.READONLY) {
				t.Errorf("%s: %s got %v, want to be refused", rule, statement, err)
			}
		}
	}
	refused("at first")
	for _, options := range []*sql.TxOptions{nil, {ReadOnly: true}, {Isolation: sql.LevelDefault}} {
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			tx, err := db.BeginTx(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			if err := tx.QueryRow(`SELECT count(*) FROM business`).Scan(&n); err != nil || n != 1 {
				t.Errorf("a read in a transaction got (%d, %v)", n, err)
			}
			if err := end(tx); err != nil {
				t.Error(err)
			}
			refused(fmt.Sprintf("after a transaction with %+v", options))
		}
	}
}

// TestReadsDoNotWait: reads and replays go past a handler that holds the writer, and see what was there before.
func TestReadsDoNotWait(t *testing.T) {
	t.Parallel()
	s := openBusiness(t, newFile(t))
	transacted(t, s, reservation("before"), inserting("row"), store.DecisionExecute, "E1")
	transacted(t, s, reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
		await.Return(t, "a read beside a handler", func() {
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() {
					transacted(t, s, reservation("before"), never(t, "I1"), store.DecisionReplay, "A6")
					wantRows(t, s, "row", 1, "E1: before the commit")
				})
			}
			group.Wait()
			if stats, err := s.Stats(t.Context()); err != nil || stats.Records[store.StateCompleted] != 1 {
				t.Errorf("stats got (%v, %v)", stats, err)
			}
		})
		return inserting("row")(ctx, v)
	}, store.DecisionExecute, "E1")
	wantRows(t, s, "row", 2, "E1")
}

// TestCloseLeavesNothing: no goroutine, and no file but the database.
func TestCloseLeavesNothing(t *testing.T) {
	ignore := goleak.IgnoreCurrent() // other tests run beside this one; it is not parallel, so they are paused
	path := newFile(t)
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, s, `CREATE TABLE business (value TEXT NOT NULL)`)
	transacted(t, s, reservation("key"), inserting("row"), store.DecisionExecute, "E1")
	wantRows(t, s, "row", 1, "E1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, ignore)
	if left := filesBeside(t, path); len(left) != 1 {
		t.Errorf("after Close there are %v, want the database alone", left)
	}
}

func filesBeside(t *testing.T, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
