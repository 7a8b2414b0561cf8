package payments

import (
	"context"
	"database/sql"
	"errors"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/onceward/onceward"
)

// OnTx returns a driver of ent on the transaction of the guard. A transaction of ent's own is a savepoint in it.
func OnTx(ctx context.Context, name string) dialect.Driver {
	return onTx{entsql.NewDriver(name, entsql.Conn{ExecQuerier: onceward.Tx(ctx)})}
}

type onTx struct{ *entsql.Driver }

func (onTx) Close() error { return errors.New("the guard ends its transaction itself") }

func (d onTx) Tx(ctx context.Context) (dialect.Tx, error) { return d.BeginTx(ctx, nil) }

func (d onTx) BeginTx(ctx context.Context, options *sql.TxOptions) (dialect.Tx, error) {
	if options != nil {
		return nil, errors.New("the guard's transaction has begun: its options are the store's")
	}
	// The innermost savepoint of a name is meant, and it is released in any case.
	return savepoint{d, context.WithoutCancel(ctx)}, d.Exec(ctx, `SAVEPOINT ent`, []any{}, nil)
}

type savepoint struct {
	onTx
	ctx context.Context
}

func (s savepoint) Commit() error { return s.Exec(s.ctx, `RELEASE SAVEPOINT ent`, []any{}, nil) }

func (s savepoint) Rollback() error {
	return errors.Join(s.Exec(s.ctx, `ROLLBACK TO SAVEPOINT ent`, []any{}, nil), s.Commit())
}
