// Package sqltx is what the SQL stores share of the transactions that they run for callers: how handlers reach them, how
// they end, and how often they are tried.
package sqltx

import (
	"context"
	"database/sql"
	"strconv"
	"sync/atomic"

	"github.com/onceward/onceward/store"
)

// DB is the handle of a pool that uses the transaction of the guard if the context carries one, and the pool otherwise. It
// has the methods that generated queries and query builders ask for, so repositories take it in the place of the pool and
// stay as they are.
type DB struct{ pool *sql.DB }

// New returns the handle of a pool.
func New(pool *sql.DB) *DB { return &DB{pool} }

// queryer is what a pool and a transaction have in common.
type queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// of returns what the statements of a context run on.
func (db *DB) of(ctx context.Context) queryer {
	if tx, ok := store.LookupTx(ctx); ok {
		return tx
	}
	return db.pool
}

// ExecContext runs a statement.
func (db *DB) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return db.of(ctx).ExecContext(ctx, query, args...)
}

// QueryContext runs a statement that returns rows.
func (db *DB) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return db.of(ctx).QueryContext(ctx, query, args...)
}

// QueryRowContext runs a statement that returns one row.
func (db *DB) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return db.of(ctx).QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement. One that was prepared in the transaction of the guard ends with it.
func (db *DB) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return db.of(ctx).PrepareContext(ctx, query)
}

// Begin begins a transaction, at the default level of the pool. In the transaction of the guard it is a savepoint.
func (db *DB) Begin(ctx context.Context) (*Tx, error) {
	guards, ok := store.LookupTx(ctx)
	if !ok {
		tx, err := db.pool.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		return &Tx{queryer: tx, ctx: ctx, begun: tx}, nil
	}
	name := "nested_" + strconv.FormatInt(savepoints.Add(1), 10)
	if _, err := guards.ExecContext(ctx, `SAVEPOINT `+name); err != nil {
		return nil, err
	}
	return &Tx{queryer: guards, ctx: ctx, savepoint: name}, nil
}

// savepoints counts the savepoints of the process, so that each has a name of its own.
var savepoints atomic.Int64

// Tx is a transaction that [DB.Begin] began.
type Tx struct {
	queryer
	ctx       context.Context
	begun     *sql.Tx // nil for a savepoint
	savepoint string
	ended     atomic.Bool
}

// Commit keeps what was done: the guard commits it with the answer, if this is a savepoint.
func (tx *Tx) Commit() error {
	if tx.begun != nil {
		return tx.begun.Commit()
	}
	return tx.end(`RELEASE SAVEPOINT `)
}

// Rollback undoes what was done. After Commit it returns [sql.ErrTxDone].
func (tx *Tx) Rollback() error {
	if tx.begun != nil {
		return tx.begun.Rollback()
	}
	return tx.end(`ROLLBACK TO SAVEPOINT `)
}

// end ends a savepoint, also for a caller whose time is up: the transaction around it continues.
func (tx *Tx) end(statement string) error {
	if tx.ended.Swap(true) {
		return sql.ErrTxDone
	}
	_, err := tx.ExecContext(context.WithoutCancel(tx.ctx), statement+tx.savepoint)
	return err
}
