package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// appTx is a transaction of the application, of whichever kind.
type appTx interface {
	// exec runs a statement and returns how many rows it wrote.
	exec(ctx context.Context, statement string, args ...any) (int64, error)
	// scan reads one row. The error is errNoRow if there is none.
	scan(ctx context.Context, statement string, args []any, dest ...any) error
}

// errNoRow is what scan returns without a row.
var errNoRow = errors.New("no row")

// transactionOf finds out what kind of transaction it is. A *sql.DB and a pool are none: what is written there is not part
// of anything.
func transactionOf(tx any) (appTx, error) {
	switch tx := tx.(type) {
	case *pgx.Batch:
		if tx != nil {
			return pgxBatch{tx}, nil
		}
	case *sql.Tx:
		if tx != nil {
			return sqlTx{tx}, nil
		}
	case pgx.Tx:
		return pgxTx{tx}, nil
	case sqlTransaction:
		return sqlTx{tx}, nil
	}
	return nil, fmt.Errorf("postgres: a %T is not a transaction: pass a pgx.Tx, such as postgres.Tx(ctx), or a *sql.Tx, such as onceward.Tx(ctx)", tx)
}

// sqlTransaction is a *sql.Tx, or what wraps one.
type sqlTransaction interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	Commit() error
	Rollback() error
}

// pgxBatch is a batch that the application is about to send in its transaction. What is queued costs no round trip of its
// own; whether it succeeded, the results of the batch tell.
type pgxBatch struct{ batch *pgx.Batch }

func (b pgxBatch) exec(_ context.Context, statement string, args ...any) (int64, error) {
	b.batch.Queue(statement, args...)
	return 0, nil
}

func (b pgxBatch) scan(context.Context, string, []any, ...any) error {
	return errors.New("postgres: a batch cannot be asked: pass the transaction itself")
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) scan(ctx context.Context, statement string, args []any, dest ...any) error {
	err := t.tx.QueryRow(ctx, statement, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoRow
	}
	return err
}

type sqlTx struct{ tx sqlTransaction }

func (t sqlTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) scan(ctx context.Context, statement string, args []any, dest ...any) error {
	err := t.tx.QueryRowContext(ctx, statement, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoRow
	}
	return err
}
