package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
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
		copied, err := tx.CopyFrom(ctx, pgx.Identifier{"business"}, []string{"value"},
			pgx.CopyFromRows([][]any{{"copy 1"}, {"copy 2"}}))
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

// TestTxOutside: where there is no transaction, a caller that insists on one learns why, and who only asks gets none.
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

// batchBeginner is a *pgx.Batch from v5.12.0 on.
type batchBeginner interface{ BeginTx(pgx.TxOptions) }

// beginningBatch is a batch that begins a transaction, as far as this pgx has such a thing, and then inserts a row.
func beginningBatch(options pgx.TxOptions, value string) *pgx.Batch {
	batch := &pgx.Batch{}
	if b, ok := any(batch).(batchBeginner); ok {
		b.BeginTx(options)
	} else if options.BeginQuery != "" {
		batch.Queue(options.BeginQuery)
	} else {
		batch.Queue("begin")
	}
	batch.Queue(insertion, value)
	return batch
}

// endBatchTx tries to end the transaction that the results of a batch hand out.
func endBatchTx(t *testing.T, ctx context.Context, results pgx.BatchResults) {
	t.Helper()
	tx := results.(interface{ Tx() pgx.Tx }).Tx()
	if tx == nil {
		if _, ok := any(&pgx.Batch{}).(batchBeginner); ok {
			t.Error("a batch that began a transaction hands out none: its deferred Rollback panics")
		}
		return
	}
	ownedErr(t, "Commit of the batch's transaction", tx.Commit(ctx))
	ownedErr(t, "Rollback of the batch's transaction", tx.Rollback(ctx))
}

// TestBatchBeginsNoTransaction: a batch of pgx v5.12.0 may begin a transaction and hand it out. Inside of a handler
// that would be the handler's own, without its gate.
func TestBatchBeginsNoTransaction(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		must(t, insertPgx(ctx, "before"))
		results := tx.SendBatch(ctx, beginningBatch(pgx.TxOptions{}, "refused"))
		endBatchTx(t, ctx, results)
		if err := results.Close(); !errors.Is(err, store.ErrTxOwned) {
			t.Errorf("E1: a batch that begins a transaction got %v, want ErrTxOwned", err)
		}
		s.wantRows("E1: nothing is visible before the end")
		must(t, insertPgx(ctx, "behind"))
	})
	s.wantRows("E1", "before", "behind")
}

// TestBatchHandsOutNoRawTransaction: with a statement of its own that begins, a batch cannot be told from any other
// before pgx hands out its transaction.
func TestBatchHandsOutNoRawTransaction(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	s.handler(func(ctx context.Context, tx pgx.Tx) {
		results := tx.SendBatch(ctx, beginningBatch(pgx.TxOptions{BeginQuery: `SELECT 1`}, "batch"))
		must(t, results.Close())
		endBatchTx(t, ctx, results)
		s.wantRows("E1: nothing is visible before the end")
		must(t, insertPgx(ctx, "behind"))
		plain := &pgx.Batch{}
		plain.Queue(insertion, "plain")
		results = tx.SendBatch(ctx, plain)
		must(t, results.Close())
		if results.(interface{ Tx() pgx.Tx }).Tx() != nil {
			t.Error("a batch that began no transaction hands one out")
		}
	})
	s.wantRows("E1", "batch", "behind", "plain")
}

// newReferring makes a shop whose rows say which record they were made under. The constraint is deferred, because the
// record is written at the end of the transaction.
func newReferring(t *testing.T, h handle) *shop {
	s := newShop(t, h)
	exec(t, s.admin, `ALTER TABLE business
		ADD COLUMN record uuid REFERENCES onceward_record (id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED`)
	return s
}

// refer inserts a row that refers to the record of its own operation.
func (s *shop) refer(id store.ID) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `INSERT INTO business (value, record) VALUES ($1, $2)`,
			id.Key, s.store.RecordID(id))
		return err
	}
}

// TestReferenceToTheRecord: business rows can refer to the record, and outlive it.
func TestReferenceToTheRecord(t *testing.T) {
	t.Parallel()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newReferring(t, h)
			for key, retention := range map[string]time.Duration{"kept": time.Hour, "reaped": time.Microsecond} {
				r := reservation(key)
				r.Retention = retention
				v, err := s.store.Transact(t.Context(), r, committing(key, s.refer(r.ID)))
				if err != nil || v.Decision != store.DecisionExecute {
					t.Fatalf("E1: got (%s, %v)", v.Decision, err)
				}
			}
			const referring = `SELECT count(*) FROM business JOIN onceward_record ON id = record WHERE value = $1`
			for _, key := range []string{"kept", "reaped"} {
				if n := number(t, s.admin, referring, key); n != 1 {
					t.Errorf("%d rows refer to the record of %q, want 1", n, key)
				}
			}
			if n, err := s.store.Reap(t.Context(), 10, false); err != nil || n != 1 {
				t.Fatalf("section 7: reaped (%d, %v), want 1", n, err)
			}
			s.wantRows("the reaper takes no business along", "kept", "reaped")
			for key, want := range map[string]int{"kept": 1, "reaped": 0} {
				if n := number(t, s.admin, referring, key); n != want {
					t.Errorf("after the reaper %d rows refer to the record of %q, want %d", n, key, want)
				}
			}
		})
	}
}

// TestReferenceToNoRecord: a reference to a record that is not there at the end stops the commit, and nothing was
// executed.
func TestReferenceToNoRecord(t *testing.T) {
	t.Parallel()
	s := newReferring(t, pgxHandle)
	v, err := s.store.Transact(t.Context(), reservation("key"), committing("key", s.refer(idOf("another"))))
	if err == nil {
		t.Errorf("a commit that breaks a constraint got %s", v.Decision)
	}
	s.wantRows("I4")
	wantState(t, s.store, "key", store.StateNone, "I4")
	transacted(t, s.store, "key", s.refer(idOf("key")))
	s.wantRows("E1", "key")
}

// TestReferenceThroughTheGuard: a handler learns the name of its record from its operation.
func TestReferenceThroughTheGuard(t *testing.T) {
	t.Parallel()
	s := newReferring(t, pgxHandle)
	guard := guardOver(t, s.store)
	call := onceward.Call{Scope: "alice", Key: "key", Operation: "pay"}
	for _, replayed := range []bool{false, true} {
		result, err := guard.Do(t.Context(), call, func(ctx context.Context) ([]byte, error) {
			op := onceward.FromContext(ctx)
			return []byte("paid"), s.refer(store.ID{Scope: op.Scope(), Key: op.Key()})(ctx)
		}, onceward.Transactional())
		if err != nil || string(result.Value) != "paid" || result.Replayed != replayed {
			t.Errorf("E4: got (%q, replayed %t, %v)", result.Value, result.Replayed, err)
		}
	}
	if n := number(t, s.admin, `SELECT count(*) FROM business JOIN onceward_record ON id = record`); n != 1 {
		t.Errorf("%d rows refer to their record, want 1", n)
	}
}
