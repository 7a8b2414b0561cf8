package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/postgres"
)

// TestTxIsNotTheHandlersToEnd: Commit and Rollback are refused, and what follows them belongs to the same transaction.
func TestTxIsNotTheHandlersToEnd(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		must(t, insertPgx(ctx, "before"))
		ownedErr(t, "Commit", tx.Commit(ctx))
		ownedErr(t, "Rollback", tx.Rollback(ctx))
		must(t, insertPgx(ctx, "behind"))
		s.wantRows("E1: nothing is visible before the end")
	})
	s.wantRows("E1", "before", "behind")
}

// TestSavepoints: a handler may undo parts of its work, and parts of parts.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		outer, err := tx.Begin(ctx)
		must(t, err)
		_, err = outer.Exec(ctx, insertion, "outer")
		must(t, err)
		inner, err := outer.Begin(ctx)
		must(t, err)
		_, err = inner.Exec(ctx, insertion, "inner")
		must(t, err)
		must(t, inner.Rollback(ctx))
		again, err := outer.Begin(ctx)
		must(t, err)
		_, err = again.Exec(ctx, insertion, "again")
		must(t, err)
		must(t, again.Commit(ctx))
		must(t, outer.Commit(ctx))
		if err := outer.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("ending a savepoint twice got %v", err)
		}
	})
	s.wantRows("E1", "again", "outer")
}

// TestSavepointAfterAFailure: what failed within a savepoint is forgotten with it.
func TestSavepointAfterAFailure(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		must(t, insertPgx(ctx, "kept"))
		err := pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
			_, err := part.Exec(ctx, insertion, "kept")
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "duplicate key") {
			t.Errorf("a duplicate within a savepoint got %v", err)
		}
		must(t, pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
			_, err := part.Exec(ctx, insertion, "also kept")
			return err
		}))
	})
	s.wantRows("E1", "also kept", "kept")
}

// TestQueries: rows are read in each of the ways that pgx has.
func TestQueries(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		rows, err := tx.Query(ctx, `SELECT i, i * i FROM generate_series(1, $1) AS i`, 3)
		must(t, err)
		squares, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ I, Square int }])
		if err != nil || fmt.Sprint(squares) != "[{1 1} {2 4} {3 9}]" {
			t.Errorf("rows are (%v, %v)", squares, err)
		}
		var n int
		must(t, tx.QueryRow(ctx, `SELECT 7`).Scan(&n))
		if err := tx.QueryRow(ctx, `SELECT 1 WHERE false`).Scan(&n); !errors.Is(err, pgx.ErrNoRows) || n != 7 {
			t.Errorf("no rows got (%d, %v)", n, err)
		}
		values, err := tx.Query(ctx, `SELECT 'a', 1`)
		must(t, err)
		if !values.Next() {
			t.Errorf("there is no row: %v", values.Err())
		}
		if got, err := values.Values(); err != nil || fmt.Sprint(got) != "[a 1]" || len(values.FieldDescriptions()) != 2 {
			t.Errorf("values are (%v, %v)", got, err)
		}
		values.Close()
		if tag := values.CommandTag(); tag.RowsAffected() != 1 {
			t.Errorf("the tag is %s", tag)
		}
	})
}

// TestStatementsAtOnce: batches, copies and prepared statements are part of the transaction.
func TestStatementsAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		batch := &pgx.Batch{}
		batch.Queue(insertion, "batch")
		batch.Queue(`SELECT count(*) FROM business`)
		batch.Queue(`SELECT value FROM business`)
		results := tx.SendBatch(ctx, batch)
		_, err := results.Exec()
		must(t, err)
		var n int
		must(t, results.QueryRow().Scan(&n))
		rows, err := results.Query()
		must(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || n != 1 || fmt.Sprint(got) != "[batch]" {
			t.Errorf("the batch found %d rows, %q (%v)", n, got, err)
		}
		must(t, results.Close())
		copied, err := tx.CopyFrom(ctx, pgx.Identifier{"business"}, []string{"value"}, pgx.CopyFromRows([][]any{{"copy 1"}, {"copy 2"}}))
		if err != nil || copied != 2 {
			t.Errorf("copied (%d, %v)", copied, err)
		}
		_, err = tx.Prepare(ctx, "mine", insertion)
		must(t, err)
		_, err = tx.Exec(ctx, "mine", "prepared")
		must(t, err)
	})
	s.wantRows("E1", "batch", "copy 1", "copy 2", "prepared")
}

// TestLargeObjects: they belong to the transaction as well.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	var oid uint32
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		objects := tx.LargeObjects()
		var err error
		oid, err = objects.Create(ctx, 0)
		must(t, err)
		object, err := objects.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		must(t, err)
		_, err = io.WriteString(object, "large")
		must(t, err)
		must(t, object.Close())
	})
	var content []byte
	must(t, s.admin.QueryRow(t.Context(), `SELECT lo_get($1)`, oid).Scan(&content))
	if string(content) != "large" {
		t.Errorf("E1: the object holds %q", content)
	}
	exec(t, s.admin, `SELECT lo_unlink($1)`, oid)
}

// TestTxOutside: where there is no transaction, whoever insists on one learns why, and who only asks gets none.
func TestTxOutside(t *testing.T) {
	t.Parallel()
	if _, ok := postgres.LookupTx(t.Context()); ok {
		t.Error("there is a transaction in an empty context")
	}
	defer func() {
		said := fmt.Sprint(recover())
		for _, want := range []string{"onceward.Transactional()", "POST and PATCH", "context the handler's own"} {
			if !strings.Contains(said, want) {
				t.Errorf("the panic says %q, want it to mention %q", said, want)
			}
		}
	}()
	postgres.Tx(t.Context())
	t.Error("Tx has returned")
}

// TestTxOfAWrappedContext: what a handler derives from its context carries the transaction too.
func TestTxOfAWrappedContext(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, _ pgx.Tx) {
		derived, cancel := context.WithCancel(ctx)
		defer cancel()
		must(t, insertPgx(derived, "pgx"))
		must(t, insertSQL(derived, "sql"))
		if _, ok := onceward.LookupTx(derived); !ok {
			t.Error("there is no *sql.Tx beside the native one")
		}
	})
	s.wantRows("E1", "pgx", "sql")
}
