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

// Tx returns the transaction of a transactional handler. What the handler writes through it becomes durable together
// with its answer, or not at all. The guard ends the transaction: its Commit and Rollback return [onceward.ErrTxOwned].
// Begin makes a savepoint, which the handler may end.
//
// It panics if the context has no transaction, because the route is not transactional or its store is not of this
// package: writes outside the transaction would silently break the guarantee.
func Tx(ctx context.Context) pgx.Tx {
	tx, ok := LookupTx(ctx)
	if !ok {
		panic("postgres: no transaction in this context: is the route built with onceward.Transactional() " +
			"on a store of this package, is its method one that is protected (POST and PATCH, unless onceward.Methods says " +
			"otherwise), and is the context the handler's own?")
	}
	return tx
}

// LookupTx returns the transaction of a transactional handler, if there is one.
func LookupTx(ctx context.Context) (pgx.Tx, bool) {
	switch tx := store.Value(ctx, gateKey{}).(type) {
	case *gate:
		return handlerTx{tx}, true
	case callersTx:
		return tx, tx.Tx != nil
	default:
		return nil, false
	}
}

// ContextWithTx returns a context from which a handler takes the transaction with [Tx], so that a test can call the
// handler without a guard. The caller ends the transaction. The handler's Commit and Rollback are refused, as they are
// with a guard, so that a test detects a handler that ends its transaction.
//
// Without a guard, [onceward.FromContext] returns nil, a message cannot be added to the answer, and [onceward.Tx] finds
// no transaction: a handler that takes a *sql.Tx gets one with [store.ContextWithTx].
func ContextWithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, gateKey{}, callersTx{tx})
}

// callersTx is a transaction that belongs to the caller of a handler.
type callersTx struct{ pgx.Tx }

// Commit returns [store.ErrTxOwned].
func (callersTx) Commit(context.Context) error { return store.ErrTxOwned }

// Rollback returns [store.ErrTxOwned].
func (callersTx) Rollback(context.Context) error { return store.ErrTxOwned }

// handlerTx is the pgx.Tx of a handler.
type handlerTx struct{ gate *gate }

// Commit returns [store.ErrTxOwned].
func (handlerTx) Commit(context.Context) error { return store.ErrTxOwned }

// Rollback returns [store.ErrTxOwned].
func (handlerTx) Rollback(context.Context) error { return store.ErrTxOwned }

// Conn returns the connection itself, past the gate. After the handler has returned it is nil, because another request
// may use the connection by then.
func (tx handlerTx) Conn() *pgx.Conn {
	conn, err := tx.gate.enter()
	if err != nil {
		return nil
	}
	defer tx.gate.Leave()
	tx.gate.raw.Store(true)
	return conn
}

// LargeObjects gives access to the large objects of the transaction. Only a transaction that pgx began can make them,
// so pgx begins one here with a statement that has no effect.
func (tx handlerTx) LargeObjects() pgx.LargeObjects {
	conn, err := tx.gate.enter()
	if err != nil {
		return pgx.LargeObjects{}
	}
	defer tx.gate.Leave()
	tx.gate.objects.Store(true)
	begun, err := conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: `SELECT 1`})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return begun.LargeObjects()
}

// Begin makes a savepoint.
func (tx handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := tx.gate.Enter(); err != nil {
		return nil, err
	}
	tx.gate.savepoints++
	name := "onceward_" + strconv.Itoa(tx.gate.savepoints)
	tx.gate.Leave()
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
	defer tx.gate.Leave()
	return tx.gate.exec(ctx, conn, sql, args)
}

// Query runs a statement that returns rows.
func (tx handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return failedRows{err: err}, err
	}
	defer tx.gate.Leave()
	tx.gate.inspect(ctx, sql)
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		tx.gate.note(pgconn.CommandTag{}, err)
		return rows, err
	}
	left := tx.gate.keep(func() error {
		rows.Close()
		return rows.Err()
	})
	return &handlerRows{Rows: rows, gate: tx.gate, left: left}, nil
}

// QueryRow runs a statement that returns one row.
func (tx handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := tx.Query(ctx, sql, args...)
	return &handlerRow{rows, err}
}

// CopyFrom copies rows into a table.
func (tx handlerTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource,
) (int64, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return 0, err
	}
	defer tx.gate.Leave()
	tx.gate.inspect(ctx, "COPY "+table.Sanitize())
	n, err := conn.CopyFrom(ctx, table, columns, source)
	tx.gate.note(pgconn.CommandTag{}, err)
	return n, err
}

// errNested is the error of a batch that begins a transaction.
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
	defer tx.gate.Leave()
	if begins(batch) {
		return failedBatch{tx.gate, errNested}
	}
	tx.gate.inspectBatch(ctx, batch)
	results := conn.SendBatch(ctx, batch)
	return &handlerBatch{BatchResults: results, gate: tx.gate, left: tx.gate.keep(results.Close)}
}

// Prepare prepares a statement on the connection.
func (tx handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	conn, err := tx.gate.enter()
	if err != nil {
		return nil, err
	}
	defer tx.gate.Leave()
	tx.gate.inspect(ctx, sql)
	description, err := conn.Prepare(ctx, name, sql)
	tx.gate.note(pgconn.CommandTag{}, err)
	return description, err
}

type gateKey struct{}

// handlerRows are rows that a handler reads. They end with the gate.
type handlerRows struct {
	pgx.Rows
	gate *gate
	left *leftOpen // nil for rows of a batch
	over bool      // they were read to their end, or closed
}

// Next reads the next row.
func (r *handlerRows) Next() bool {
	if err := r.gate.Enter(); err != nil {
		return false
	}
	defer r.gate.Leave()
	more := r.Rows.Next()
	if !more {
		r.ended()
	}
	return more
}

// Close ends the rows.
func (r *handlerRows) Close() {
	if err := r.gate.Enter(); err != nil {
		return // the gate has closed them
	}
	defer r.gate.Leave()
	r.Rows.Close()
	r.ended()
}

// ended removes the rows from the gate. The caller holds the gate.
func (r *handlerRows) ended() {
	if r.over {
		return
	}
	r.over = true
	r.gate.Forget(r.left)
	r.gate.note(r.Rows.CommandTag(), r.Rows.Err())
}

// Err returns the error that ended the rows, if any.
func (r *handlerRows) Err() error { return r.gate.Do(r.Rows.Err) }

// CommandTag returns how many rows there were.
func (r *handlerRows) CommandTag() (tag pgconn.CommandTag) {
	_ = r.gate.Do(func() error { tag = r.Rows.CommandTag(); return nil }) // there is none when the gate is closed
	return tag
}

// FieldDescriptions describes the columns.
func (r *handlerRows) FieldDescriptions() (fields []pgconn.FieldDescription) {
	_ = r.gate.Do(func() error { fields = r.Rows.FieldDescriptions(); return nil }) // likewise
	return fields
}

// RawValues returns the values of the row as the server sent them.
func (r *handlerRows) RawValues() (values [][]byte) {
	_ = r.gate.Do(func() error { values = r.Rows.RawValues(); return nil }) // likewise
	return values
}

// Conn returns the connection itself, past the gate.
func (r *handlerRows) Conn() *pgx.Conn { return handlerTx{r.gate}.Conn() }

// Scan reads the values of the row.
func (r *handlerRows) Scan(dest ...any) error {
	return r.gate.Do(func() error { return r.Rows.Scan(dest...) })
}

// Values returns the values of the row.
func (r *handlerRows) Values() (values []any, err error) {
	err = r.gate.Do(func() (err error) {
		values, err = r.Rows.Values()
		return err
	})
	return values, err
}

// handlerRow is the one row of QueryRow.
type handlerRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the values of the row, or returns pgx.ErrNoRows.
func (r *handlerRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// failedRows are the rows of a query that was not run.
type failedRows struct {
	pgx.Rows
	err error
}

// Next returns false.
func (failedRows) Next() bool { return false }

// Close does nothing.
func (failedRows) Close() {}

// Err returns the error of the query.
func (r failedRows) Err() error { return r.err }

// handlerBatch is a batch that a handler reads. It ends with the gate.
type handlerBatch struct {
	pgx.BatchResults
	gate *gate
	left *leftOpen
}

// Exec reads the result of the next statement.
func (b *handlerBatch) Exec() (pgconn.CommandTag, error) {
	if err := b.gate.Enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer b.gate.Leave()
	tag, err := b.BatchResults.Exec()
	b.gate.note(tag, err)
	return tag, err
}

// Query reads the rows of the next statement.
func (b *handlerBatch) Query() (pgx.Rows, error) {
	if err := b.gate.Enter(); err != nil {
		return failedRows{err: err}, err
	}
	defer b.gate.Leave()
	rows, err := b.BatchResults.Query()
	if err != nil {
		b.gate.note(pgconn.CommandTag{}, err)
		return rows, err
	}
	return &handlerRows{Rows: rows, gate: b.gate}, nil
}

// QueryRow reads the one row of the next statement.
func (b *handlerBatch) QueryRow() pgx.Row {
	rows, err := b.Query()
	return &handlerRow{rows, err}
}

// Tx returns the handler's own transaction, which refuses to be ended, instead of a transaction that the batch has
// begun: that would be the same transaction, without the gate. It returns nil if the batch began none. Releases of pgx
// before v5.12.0 do not call it.
func (b *handlerBatch) Tx() pgx.Tx {
	results, ok := b.BatchResults.(interface{ Tx() pgx.Tx })
	if !ok || results.Tx() == nil {
		return nil
	}
	return handlerTx{b.gate}
}

// Close reads the batch to its end.
func (b *handlerBatch) Close() error {
	if err := b.gate.Enter(); err != nil {
		return err
	}
	defer b.gate.Leave()
	b.gate.Forget(b.left)
	err := b.BatchResults.Close()
	b.gate.note(pgconn.CommandTag{}, err)
	return err
}

// failedBatch is a batch that was not sent.
type failedBatch struct {
	gate *gate
	err  error
}

// Exec returns the error of the batch.
func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }

// Query returns the error of the batch.
func (b failedBatch) Query() (pgx.Rows, error) { return failedRows{err: b.err}, b.err }

// QueryRow returns a row with the error of the batch.
func (b failedBatch) QueryRow() pgx.Row { return &handlerRow{err: b.err} }

// Close returns the error of the batch.
func (b failedBatch) Close() error { return b.err }

// Tx returns a transaction for callers that defer its Rollback before they check the error. The
// transaction refuses Rollback.
func (b failedBatch) Tx() pgx.Tx { return handlerTx{b.gate} }

// savepoint is a part of the transaction that the handler may undo.
type savepoint struct {
	handlerTx
	name  string
	ended bool
}

// Commit keeps what was done since the savepoint.
func (sp *savepoint) Commit(ctx context.Context) error { return sp.end(ctx, `RELEASE SAVEPOINT `) }

// Rollback undoes what was done since the savepoint. After Commit it only returns [pgx.ErrTxClosed], as in pgx.
func (sp *savepoint) Rollback(ctx context.Context) error {
	return sp.end(ctx, `ROLLBACK TO SAVEPOINT `)
}

func (sp *savepoint) end(ctx context.Context, statement string) error {
	if sp.ended {
		return pgx.ErrTxClosed
	}
	sp.ended = true
	_, err := sp.Exec(ctx, statement+sp.name)
	return err
}
