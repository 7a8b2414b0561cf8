package orm

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/lab/feature/orm/sqlc/query"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// repository is what services with sqlc have, after the example of its documentation: only the type of db is another.
type repository struct {
	*query.Queries
	db *store.SQLHandle
}

func (r *repository) execTx(ctx context.Context, fn func(*query.Queries) error) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	q := query.New(tx)
	if err := fn(q); err != nil {
		if rbErr := tx.Rollback(); rbErr != nil {
			return fmt.Errorf("tx err: %v, rb err: %v", err, rbErr)
		}
		return err
	}
	return tx.Commit()
}

// stdSQLCtx has the methods of squirrel's interface of that name, which RunWith looks for.
type stdSQLCtx interface {
	Query(query string, args ...any) (*sql.Rows, error)
	QueryRow(query string, args ...any) *sql.Row
	Exec(query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var (
	_ stdSQLCtx = postgres.SQLDB(nil)
	_ stdSQLCtx = mysql.DB(nil)
	_ stdSQLCtx = (*store.SQLTx)(nil)
)

// TestRepository: a repository with a transaction of its own becomes a part of the guard's, and a part of it that fails
// undoes itself alone. A statement without a context is refused, because it would be written past the guard.
func TestRepository(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	err = s.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), createTable)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &repository{query.New(s.Handle()), s.Handle()}
	errUndo := errors.New("undo")
	pay := func(ctx context.Context, id string, then error) error {
		return r.execTx(ctx, func(q *query.Queries) error {
			return errors.Join(q.CreatePayment(ctx, query.CreatePaymentParams{ID: id, Amount: 7}), then)
		})
	}
	for _, end := range []error{errUndo, nil} {
		err := s.InTx(t.Context(), func(ctx context.Context) error {
			other := query.CreatePaymentParams{ID: "2", Amount: 1}
			if err := errors.Join(pay(ctx, "kept", nil), r.CreatePayment(ctx, other)); err != nil {
				t.Error(err)
			}
			if err := pay(ctx, "undone", errUndo); !errors.Is(err, errUndo) {
				t.Error(err)
			}
			refuseWithoutContext(ctx, t, r.db)
			return end
		})
		if err != end {
			t.Fatal(err)
		}
		var payments, undone int
		row := r.db.QueryRowContext(t.Context(), `SELECT count(*), count(*) FILTER (WHERE id = 'undone') FROM payment`)
		if err := row.Scan(&payments, &undone); err != nil {
			t.Fatal(err)
		}
		if want := map[error]int{errUndo: 0, nil: 2}[end]; payments != want || undone != 0 {
			t.Errorf("a handler that ends with %v: %d payments, %d of the part that was undone; want %d and 0",
				end, payments, undone, want)
		}
	}
}

// refuseWithoutContext wants a handle to refuse statements without a context, options of a transaction that has begun,
// and statements after the end of a savepoint.
func refuseWithoutContext(ctx context.Context, t *testing.T, db *store.SQLHandle) {
	const insert = `INSERT INTO payment VALUES ('past the guard', 7)`
	_, execErr := db.Exec(insert)
	_, queryErr := db.Query(insert)
	for method, err := range map[string]error{
		"Exec": execErr, "Query": queryErr, "QueryRow": db.QueryRow(insert).Err(),
	} {
		if !errors.Is(err, store.ErrNoContext) {
			t.Errorf("%s without a context: %v, want ErrNoContext", method, err)
		}
	}
	for _, options := range []sql.TxOptions{{Isolation: sql.LevelSerializable}, {ReadOnly: true}} {
		if _, err := db.BeginTx(ctx, &options); err == nil {
			t.Errorf("a savepoint with %+v was begun", options)
		}
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := tx.Exec(insert); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	_, execErr = tx.Exec(insert)
	_, queryErr = tx.Query(insert)
	for method, err := range map[string]error{
		"Exec": execErr, "Query": queryErr, "QueryRow": tx.QueryRow(insert).Err(), "Commit": tx.Commit(),
	} {
		if !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s after Rollback: %v, want sql.ErrTxDone", method, err)
		}
	}
}
