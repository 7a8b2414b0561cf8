package payments

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/onceward/onceward"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
)

// NewDB returns a bun whose queries go to the transaction of the guard, which their context has. It has no connections
// of its own: a query without the guard, and a transaction of bun's own, are errors.
func NewDB(dialect schema.Dialect) *bun.DB {
	return bun.NewDB(sql.OpenDB(onTx{}), dialect, bun.WithConnResolver(onTx{}))
}

type onTx struct{}

func (onTx) ResolveConn(ctx context.Context, _ bun.Query) bun.IConn {
	if tx, ok := onceward.LookupTx(ctx); ok {
		return tx
	}
	return nil // bun connects then
}

func (onTx) Connect(context.Context) (driver.Conn, error) {
	return nil, errors.New("this bun is for the transaction of the guard alone: use the handler's context, and Savepoint")
}

func (onTx) Driver() driver.Driver { return nil }
func (onTx) Close() error          { return nil }

// Savepoint runs a part of a handler, and undoes it alone if it fails.
func Savepoint(ctx context.Context, part func() error) error {
	tx := onceward.Tx(ctx)
	if _, err := tx.ExecContext(ctx, `SAVEPOINT part`); err != nil {
		return err
	}
	failed := part()
	if failed != nil {
		_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT part`)
		failed = errors.Join(failed, err)
	}
	_, err := tx.ExecContext(ctx, `RELEASE SAVEPOINT part`)
	return errors.Join(failed, err)
}
