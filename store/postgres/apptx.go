package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// appTx is a transaction of the application, of database/sql or of pgx.
type appTx interface {
	// exec runs a statement and returns how many rows it wrote.
	exec(ctx context.Context, statement string, args ...any) (int64, error)
	// scan reads one row. The error is errNoRow if there is none.
	scan(ctx context.Context, statement string, args []any, dest ...any) error
}

// errNoRow is what scan returns without a row.
var errNoRow = errors.New("no row")

// errNoTx is returned for a transaction that is nil.
var errNoTx = errors.New("postgres: there is no transaction: pass one, such as onceward.Tx(ctx) or postgres.Tx(ctx)")

// ofSQL is a transaction of database/sql.
func ofSQL(tx *sql.Tx) (appTx, error) {
	if tx == nil {
		return nil, errNoTx
	}
	return sqlTx{tx}, nil
}

// ofPgx is a transaction of pgx.
func ofPgx(tx pgx.Tx) (appTx, error) {
	if tx == nil {
		return nil, errNoTx
	}
	return pgxTx{tx}, nil
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

type sqlTx struct{ tx *sql.Tx }

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
