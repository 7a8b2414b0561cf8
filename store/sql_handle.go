package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
)

// SQLHandle is the handle of a pool. It uses the transaction of the guard if the context carries one, and the pool
// otherwise. It has the methods that generated queries and query builders need, so repositories take it in place of the
// *sql.DB. The packages of the SQL stores return it, such as postgres.SQLDB.
//
// Exec, Query and QueryRow exist for query builders that require them before they take a context, and return
// [ErrNoContext]: without a context the handle cannot find the transaction, and would write past it.
type SQLHandle struct{ pool *sql.DB }

// NewSQLHandle returns the handle of a pool. It is for stores: their users call postgres.SQLDB, mysql.DB or the method
// Handle of a store on SQLite.
func NewSQLHandle(pool *sql.DB) *SQLHandle { return &SQLHandle{pool} }

// ErrNoContext is returned when a method of a [SQLHandle] is called without a context.
var ErrNoContext = errors.New("onceward: the handle finds the transaction of the guard by the context: " +
	"call a method that takes one, such as ExecContext")

// sqlQueryer has the methods that a pool and a transaction have in common.
type sqlQueryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// of returns the transaction or the pool on which the statements of a context run.
func (h *SQLHandle) of(ctx context.Context) sqlQueryer {
	if tx, ok := LookupTx(ctx); ok {
		return tx
	}
	return h.pool
}

// ExecContext runs a statement.
func (h *SQLHandle) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return h.of(ctx).ExecContext(ctx, query, args...)
}

// QueryContext runs a statement that returns rows.
func (h *SQLHandle) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return h.of(ctx).QueryContext(ctx, query, args...)
}

// QueryRowContext runs a statement that returns one row.
func (h *SQLHandle) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return h.of(ctx).QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement. A statement that was prepared in the transaction of the guard ends with it.
func (h *SQLHandle) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return h.of(ctx).PrepareContext(ctx, query)
}

// Exec returns [ErrNoContext].
func (h *SQLHandle) Exec(string, ...any) (sql.Result, error) { return nil, ErrNoContext }

// Query returns [ErrNoContext].
func (h *SQLHandle) Query(string, ...any) (*sql.Rows, error) { return nil, ErrNoContext }

// QueryRow returns a row whose error is [ErrNoContext].
func (h *SQLHandle) QueryRow(string, ...any) *sql.Row { return failedRow(ErrNoContext) }

// failedRow returns a row with an error. Only database/sql can make a row, so it comes from a pool that has no
// connections.
func failedRow(err error) *sql.Row {
	refusing := sql.OpenDB(noConnections{err})
	defer refusing.Close()
	return refusing.QueryRow("")
}

// noConnections is a connector that returns an error.
type noConnections struct{ err error }

// Connect implements [driver.Connector].
func (c noConnections) Connect(context.Context) (driver.Conn, error) { return nil, c.err }

// Driver implements [driver.Connector].
func (noConnections) Driver() driver.Driver { return nil }

// BeginTx begins a transaction. In the transaction of the guard it is a savepoint, and options that ask for an
// isolation level or a read-only transaction are refused: the guard's transaction has begun, at the level of its
// route.
func (h *SQLHandle) BeginTx(ctx context.Context, options *sql.TxOptions) (*SQLTx, error) {
	guards, ok := LookupTx(ctx)
	if !ok {
		tx, err := h.pool.BeginTx(ctx, options)
		if err != nil {
			return nil, err
		}
		return &SQLTx{on: tx, ctx: ctx, begun: tx}, nil
	}
	if options != nil && *options != (sql.TxOptions{}) {
		return nil, fmt.Errorf("onceward: a savepoint has the settings of the guard's transaction, not %s, "+
			"read-only %t: set the level of the route with onceward.Isolation", options.Isolation, options.ReadOnly)
	}
	name := "nested_" + strconv.FormatInt(savepoints.Add(1), 10)
	if _, err := guards.ExecContext(ctx, `SAVEPOINT `+name); err != nil {
		return nil, err
	}
	return &SQLTx{on: guards, ctx: ctx, savepoint: name}, nil
}

// savepoints counts the savepoints of the process, so that each has a unique name.
var savepoints atomic.Int64

// SQLTx is a transaction that [SQLHandle.BeginTx] began. Methods without a context run with the context of BeginTx.
type SQLTx struct {
	on        sqlQueryer
	ctx       context.Context
	begun     *sql.Tx // nil for a savepoint
	savepoint string
	ended     atomic.Bool // whether a savepoint has ended; database/sql records the end of a transaction
}

// ExecContext runs a statement.
func (tx *SQLTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if tx.ended.Load() {
		return nil, sql.ErrTxDone
	}
	return tx.on.ExecContext(ctx, query, args...)
}

// QueryContext runs a statement that returns rows.
func (tx *SQLTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if tx.ended.Load() {
		return nil, sql.ErrTxDone
	}
	return tx.on.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a statement that returns one row.
func (tx *SQLTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if tx.ended.Load() {
		return failedRow(sql.ErrTxDone)
	}
	return tx.on.QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement, which ends with the transaction of the guard or with this one.
func (tx *SQLTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if tx.ended.Load() {
		return nil, sql.ErrTxDone
	}
	return tx.on.PrepareContext(ctx, query)
}

// Exec runs a statement.
func (tx *SQLTx) Exec(query string, args ...any) (sql.Result, error) {
	return tx.ExecContext(tx.ctx, query, args...)
}

// Query runs a statement that returns rows.
func (tx *SQLTx) Query(query string, args ...any) (*sql.Rows, error) {
	return tx.QueryContext(tx.ctx, query, args...)
}

// QueryRow runs a statement that returns one row.
func (tx *SQLTx) QueryRow(query string, args ...any) *sql.Row {
	return tx.QueryRowContext(tx.ctx, query, args...)
}

// Commit keeps the writes. The writes after a savepoint are committed by the guard, with the answer.
func (tx *SQLTx) Commit() error {
	if tx.begun != nil {
		return tx.begun.Commit()
	}
	return tx.end(`RELEASE SAVEPOINT `)
}

// Rollback undoes the writes. After Commit it returns [sql.ErrTxDone].
func (tx *SQLTx) Rollback() error {
	if tx.begun != nil {
		return tx.begun.Rollback()
	}
	return tx.end(`ROLLBACK TO SAVEPOINT `)
}

// end ends a savepoint even if its context has ended, because the transaction around it continues.
func (tx *SQLTx) end(statement string) error {
	if tx.ended.Swap(true) {
		return sql.ErrTxDone
	}
	_, err := tx.on.ExecContext(context.WithoutCancel(tx.ctx), statement+tx.savepoint)
	return err
}
