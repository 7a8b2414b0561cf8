package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/store"
)

// Tx returns the transaction of a transactional handler. What the handler writes through it becomes durable together with
// its answer, or not at all. The guard ends it: its Commit and Rollback return [onceward.ErrTxOwned]. Begin makes a
// savepoint, which the handler may end.
//
// It panics if the context has none, because the route is not transactional or its store is not of this package: writing
// past the transaction would undo the guarantee without a sign.
func Tx(ctx context.Context) pgx.Tx {
	tx, ok := LookupTx(ctx)
	if !ok {
		panic("postgres: no transaction in this context: is the route built with onceward.Transactional() on a store of this package, is its method one that is protected (POST and PATCH, unless onceward.Methods says otherwise), and is the context the handler's own?")
	}
	return tx
}

// LookupTx returns the transaction of a transactional handler, if there is one.
func LookupTx(ctx context.Context) (pgx.Tx, bool) {
	g, ok := ctx.Value(gateKey{}).(*gate)
	if !ok {
		return nil, false
	}
	return handlerTx{g}, true
}

// handlerTx is the pgx.Tx of a handler.
type handlerTx struct{ gate *gate }

// Commit refuses.
func (handlerTx) Commit(context.Context) error { return store.ErrTxOwned }

// Rollback refuses.
func (handlerTx) Rollback(context.Context) error { return store.ErrTxOwned }

// Conn returns the connection itself, past the gate. Behind the handler's end it is nil: the connection may be another
// request's by then.
func (tx handlerTx) Conn() *pgx.Conn {
	conn, err := tx.gate.enter()
	if err != nil {
		return nil
	}
	defer tx.gate.leave()
	tx.gate.raw.Store(true)
	return conn
}

// LargeObjects gives access to the large objects of the transaction. Only a transaction that pgx began can make them, so it
// is told that it did.
func (tx handlerTx) LargeObjects() pgx.LargeObjects {
	conn, err := tx.gate.enter()
	if err != nil {
		return pgx.LargeObjects{}
	}
	defer tx.gate.leave()
	tx.gate.objects.Store(true)
	begun, err := conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: `SELECT 1`})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return begun.LargeObjects()
}

// Begin makes a savepoint.
func (tx handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx.gate.mu.Lock()
	tx.gate.savepoints++
	name := "onceward_" + strconv.Itoa(tx.gate.savepoints)
	tx.gate.mu.Unlock()
	if _, err := tx.Exec(ctx, `SAVEPOINT `+name); err != nil {
		return nil, err
	}
	return &savepoint{handlerTx: tx, name: name}, nil
}

// Exec runs a statement.
func (tx handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer tx.gate.leave()
	tx.gate.inspect(sql)
	tag, err := conn.Exec(ctx, sql, args...)
	tx.gate.note(tag, err)
	return tag, err
}

// Query runs a statement that returns rows.
func (tx handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return failedRows{err: err}, err
	}
	defer tx.gate.leave()
	tx.gate.inspect(sql)
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		tx.gate.note(pgconn.CommandTag{}, err)
		return rows, err
	}
	tx.gate.keep(rows)
	return &handlerRows{Rows: rows, gate: tx.gate}, nil
}

// QueryRow runs a statement that returns one row.
func (tx handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := tx.Query(ctx, sql, args...)
	return &handlerRow{rows, err}
}

// CopyFrom copies rows into a table.
func (tx handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return 0, err
	}
	defer tx.gate.leave()
	n, err := conn.CopyFrom(ctx, table, columns, source)
	tx.gate.note(pgconn.CommandTag{}, err)
	return n, err
}

// errNested is what a batch gets that begins a transaction.
var errNested = fmt.Errorf("%w: a batch cannot begin another inside of it", store.ErrTxOwned)

// begins reports whether a batch begins with a transaction, by pgx.Batch.BeginTx or by a statement.
func begins(batch *pgx.Batch) bool {
	if len(batch.QueuedQueries) == 0 {
		return false
	}
	verb, _, _ := strings.Cut(strings.TrimSpace(batch.QueuedQueries[0].SQL), " ")
	return strings.EqualFold(verb, "begin") || strings.EqualFold(verb, "start")
}

// SendBatch runs several statements in one round trip. As in pgx, the batch cannot begin a transaction.
func (tx handlerTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	conn, err := tx.gate.enter()
	if err != nil {
		return failedBatch{tx.gate, err}
	}
	defer tx.gate.leave()
	if begins(batch) {
		return failedBatch{tx.gate, errNested}
	}
	tx.gate.inspectBatch(batch)
	results := &handlerBatch{BatchResults: conn.SendBatch(ctx, batch), gate: tx.gate}
	tx.gate.keep(results.closer())
	return results
}

// Prepare prepares a statement on the connection.
func (tx handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return nil, err
	}
	defer tx.gate.leave()
	tx.gate.inspect(sql)
	return conn.Prepare(ctx, name, sql)
}
