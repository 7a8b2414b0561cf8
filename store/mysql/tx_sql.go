package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"reflect"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/store"
)

// bridge makes a *sql.Tx of a transaction that has already begun. It is a database/sql pool whose only connections are
// those that it is handed, each for one transaction.
type bridge struct{ db *sql.DB }

func newBridge() *bridge {
	db := sql.OpenDB(bridgeConnector{})
	db.SetMaxIdleConns(-1) // a connection goes away with its transaction
	return &bridge{db}
}

func (b *bridge) close() { _ = b.db.Close() }

// sql returns the *sql.Tx of the transaction; one that is over when the handler has returned.
func (g *gate) sql() *sql.Tx {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sqlTx != nil {
		return g.sqlTx
	}
	ctx := context.WithValue(context.Background(), bridgeKey{}, &bridgeConn{gate: g})
	tx, err := g.t.store.bridge.db.BeginTx(ctx, nil)
	if err != nil {
		return nil
	}
	g.sqlTx = tx
	if g.closed {
		_ = tx.Rollback() // it is over from the start
	}
	return tx
}

type bridgeKey struct{}

// bridgeConnector hands out the connection that the context carries.
type bridgeConnector struct{}

// Connect implements [sqldriver.Connector].
func (bridgeConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if conn, ok := ctx.Value(bridgeKey{}).(*bridgeConn); ok {
		return conn, nil
	}
	return nil, errors.New("mysql: there is no connection but that of the transaction")
}

// Driver implements [sqldriver.Connector].
func (bridgeConnector) Driver() sqldriver.Driver { return driver.MySQLDriver{} }

// bridgeConn lets database/sql use the connection of a transaction through its gate.
type bridgeConn struct{ gate *gate }

// The interfaces by which database/sql uses a connection.
var (
	_ sqldriver.ConnBeginTx        = (*bridgeConn)(nil)
	_ sqldriver.ConnPrepareContext = (*bridgeConn)(nil)
	_ sqldriver.ExecerContext      = (*bridgeConn)(nil)
	_ sqldriver.QueryerContext     = (*bridgeConn)(nil)
	_ sqldriver.NamedValueChecker  = (*bridgeConn)(nil)
)

// BeginTx has nothing to do: the transaction has begun.
func (c *bridgeConn) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return ownedTx{}, nil
}

// Begin has nothing to do either.
func (c *bridgeConn) Begin() (sqldriver.Tx, error) { return ownedTx{}, nil }

// Close leaves the connection to its pool.
func (c *bridgeConn) Close() error { return nil }

// CheckNamedValue leaves values to the driver, which knows more types than database/sql. It does not use the
// connection, so it needs no turn.
func (c *bridgeConn) CheckNamedValue(v *sqldriver.NamedValue) error {
	return c.gate.t.link.raw.CheckNamedValue(v)
}

// Prepare prepares a statement.
func (c *bridgeConn) Prepare(query string) (sqldriver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement.
func (c *bridgeConn) PrepareContext(ctx context.Context, query string) (sqldriver.Stmt, error) {
	var prepared sqldriver.Stmt
	err := c.gate.run(ctx, query, func(ctx context.Context, raw rawConn) error {
		inner, err := raw.PrepareContext(ctx, query)
		if err == nil {
			prepared = &bridgeStmt{gate: c.gate, query: query, inner: inner, inputs: inner.NumInput()}
		}
		return err
	})
	return prepared, err
}

// ExecContext runs a statement. Where the driver does not put the arguments into the text, database/sql prepares it.
func (c *bridgeConn) ExecContext(
	ctx context.Context, query string, args []sqldriver.NamedValue,
) (result sqldriver.Result, err error) {
	err = c.gate.run(ctx, query, func(ctx context.Context, raw rawConn) (err error) {
		result, err = raw.ExecContext(ctx, query, args)
		return err
	})
	return result, err
}

// QueryContext runs a statement that returns rows.
func (c *bridgeConn) QueryContext(
	ctx context.Context, query string, args []sqldriver.NamedValue,
) (sqldriver.Rows, error) {
	return c.gate.query(ctx, query, func(ctx context.Context, raw rawConn) (sqldriver.Rows, error) {
		return raw.QueryContext(ctx, query, args)
	})
}

// bridgeStmt is a prepared statement.
type bridgeStmt struct {
	gate   *gate
	query  string
	inner  sqldriver.Stmt
	inputs int
}

// Close ends the statement.
func (s *bridgeStmt) Close() error {
	if err := s.gate.enter(); err != nil {
		return nil // it ends with the connection
	}
	defer s.gate.leave()
	return s.inner.Close()
}

// NumInput is the number of the statement's parameters.
func (s *bridgeStmt) NumInput() int { return s.inputs }

// CheckNamedValue leaves values to the sqldriver.
func (s *bridgeStmt) CheckNamedValue(v *sqldriver.NamedValue) error {
	if checker, ok := s.inner.(sqldriver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return sqldriver.ErrSkip
}

// Exec is not called: ExecContext is there.
func (s *bridgeStmt) Exec([]sqldriver.Value) (sqldriver.Result, error) { return nil, sqldriver.ErrSkip }

// Query is not called: QueryContext is there.
func (s *bridgeStmt) Query([]sqldriver.Value) (sqldriver.Rows, error) { return nil, sqldriver.ErrSkip }

// ExecContext runs the statement.
func (s *bridgeStmt) ExecContext(
	ctx context.Context, args []sqldriver.NamedValue,
) (result sqldriver.Result, err error) {
	err = s.gate.run(ctx, s.query, func(ctx context.Context, _ rawConn) (err error) {
		result, err = s.inner.(sqldriver.StmtExecContext).ExecContext(ctx, args)
		return err
	})
	return result, err
}

// QueryContext runs the statement.
func (s *bridgeStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return s.gate.query(ctx, s.query, func(ctx context.Context, _ rawConn) (sqldriver.Rows, error) {
		return s.inner.(sqldriver.StmtQueryContext).QueryContext(ctx, args)
	})
}

// bridgeRows are rows that a handler reads. They end with the gate.
type bridgeRows struct {
	inner   sqldriver.Rows
	gate    *gate
	columns []string
}

// Columns implements [sqldriver.Rows].
func (r *bridgeRows) Columns() []string { return r.columns }

// Next reads the next row.
func (r *bridgeRows) Next(dest []sqldriver.Value) error {
	if err := r.gate.enter(); err != nil {
		return err
	}
	defer r.gate.leave()
	r.gate.busy.Store(true)
	defer r.gate.busy.Store(false)
	err := r.inner.Next(dest)
	if err != io.EOF {
		r.gate.note(err)
	}
	return err
}

// Close ends the rows.
func (r *bridgeRows) Close() error {
	if err := r.gate.enter(); err != nil {
		return nil // the gate has closed them
	}
	defer r.gate.leave()
	cancel := r.gate.results[r.inner]
	delete(r.gate.results, r.inner)
	err := r.inner.Close()
	if cancel != nil {
		cancel()
	}
	r.gate.note(err)
	return err
}

// HasNextResultSet implements [sqldriver.RowsNextResultSet]: a procedure may return several.
func (r *bridgeRows) HasNextResultSet() bool {
	if err := r.gate.enter(); err != nil {
		return false
	}
	defer r.gate.leave()
	sets, ok := r.inner.(sqldriver.RowsNextResultSet)
	return ok && sets.HasNextResultSet()
}

// NextResultSet implements [sqldriver.RowsNextResultSet].
func (r *bridgeRows) NextResultSet() error {
	if err := r.gate.enter(); err != nil {
		return err
	}
	defer r.gate.leave()
	sets, ok := r.inner.(sqldriver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	err := sets.NextResultSet()
	if err == nil {
		r.columns = r.inner.Columns()
	} else if err != io.EOF {
		r.gate.note(err)
	}
	return err
}

// ColumnTypeDatabaseTypeName implements [sqldriver.RowsColumnTypeDatabaseTypeName].
func (r *bridgeRows) ColumnTypeDatabaseTypeName(index int) (name string) {
	r.inspect(func() {
		if typed, ok := r.inner.(sqldriver.RowsColumnTypeDatabaseTypeName); ok {
			name = typed.ColumnTypeDatabaseTypeName(index)
		}
	})
	return name
}

// ColumnTypeNullable implements [sqldriver.RowsColumnTypeNullable].
func (r *bridgeRows) ColumnTypeNullable(index int) (nullable, ok bool) {
	r.inspect(func() {
		if typed, can := r.inner.(sqldriver.RowsColumnTypeNullable); can {
			nullable, ok = typed.ColumnTypeNullable(index)
		}
	})
	return nullable, ok
}

// ColumnTypePrecisionScale implements [sqldriver.RowsColumnTypePrecisionScale].
func (r *bridgeRows) ColumnTypePrecisionScale(index int) (precision, scale int64, ok bool) {
	r.inspect(func() {
		if typed, can := r.inner.(sqldriver.RowsColumnTypePrecisionScale); can {
			precision, scale, ok = typed.ColumnTypePrecisionScale(index)
		}
	})
	return precision, scale, ok
}

// ColumnTypeScanType implements [sqldriver.RowsColumnTypeScanType].
func (r *bridgeRows) ColumnTypeScanType(index int) reflect.Type {
	scan := reflect.TypeFor[any]()
	r.inspect(func() {
		if typed, ok := r.inner.(sqldriver.RowsColumnTypeScanType); ok {
			scan = typed.ColumnTypeScanType(index)
		}
	})
	return scan
}

// inspect looks at the rows if the handler may still use them.
func (r *bridgeRows) inspect(look func()) {
	if err := r.gate.enter(); err != nil {
		return
	}
	defer r.gate.leave()
	look()
}

// ownedTx is what database/sql ends when the *sql.Tx is ended: nothing.
type ownedTx struct{}

// Commit refuses.
func (ownedTx) Commit() error { return store.ErrTxOwned }

// Rollback refuses.
func (ownedTx) Rollback() error { return store.ErrTxOwned }
