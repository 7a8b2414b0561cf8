package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"io"

	"github.com/onceward/onceward/internal/sqltx"
)

// SQL returns the *sql.Tx of the transaction, or one that has already ended if the handler has returned.
func (g *gate) SQL() *sql.Tx {
	return g.Gate.SQL(g.t.store.bridge, func() sqldriver.Conn { return &bridgeConn{gate: g} })
}

// Holds reports whether the transaction is on a connection of a pool.
func (g *gate) Holds(pool any) bool { return pool == any(g.t.store.handlers) }

// bridgeConn lets database/sql use the connection of a transaction through its gate.
type bridgeConn struct {
	sqltx.Begun
	gate *gate
}

// The interfaces by which database/sql uses a connection.
var (
	_ sqldriver.ConnBeginTx        = (*bridgeConn)(nil)
	_ sqldriver.ConnPrepareContext = (*bridgeConn)(nil)
	_ sqldriver.ExecerContext      = (*bridgeConn)(nil)
	_ sqldriver.QueryerContext     = (*bridgeConn)(nil)
	_ sqldriver.NamedValueChecker  = (*bridgeConn)(nil)
)

// CheckNamedValue leaves values to the driver, which supports more types than database/sql. It does not use the
// connection, so it does not enter the gate.
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

// ExecContext runs a statement. If the driver does not put the
// arguments into the text, database/sql prepares the statement.
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

// Close closes the statement.
func (s *bridgeStmt) Close() error {
	if err := s.gate.Enter(); err != nil {
		return nil // it ends with the connection
	}
	defer s.gate.Leave()
	return s.inner.Close()
}

// NumInput returns the number of the statement's parameters.
func (s *bridgeStmt) NumInput() int { return s.inputs }

// CheckNamedValue leaves values to the driver.
func (s *bridgeStmt) CheckNamedValue(v *sqldriver.NamedValue) error {
	if checker, ok := s.inner.(sqldriver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return sqldriver.ErrSkip
}

// Exec is not called, because ExecContext exists.
func (s *bridgeStmt) Exec([]sqldriver.Value) (sqldriver.Result, error) { return nil, sqldriver.ErrSkip }

// Query is not called, because QueryContext exists.
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
	sqltx.ColumnTypes
	inner  sqldriver.Rows
	gate   *gate
	cancel context.CancelFunc
}

// openRows are rows that the gate closes.
type openRows struct{ *bridgeRows }

// Close closes the rows. It ignores the error, which would be an error of the connection: the connection is checked.
func (r openRows) Close() {
	_ = r.inner.Close()
	r.cancel()
}

// Next reads the next row.
func (r *bridgeRows) Next(dest []sqldriver.Value) error {
	if err := r.gate.Enter(); err != nil {
		return err
	}
	defer r.gate.Leave()
	r.gate.Busy.Store(true)
	defer r.gate.Busy.Store(false)
	err := r.inner.Next(dest)
	if err != io.EOF {
		r.gate.note(err)
	}
	return err
}

// Close closes the rows.
func (r *bridgeRows) Close() error {
	if err := r.gate.Enter(); err != nil {
		return nil // the gate has closed them
	}
	defer r.gate.Leave()
	r.gate.Forget(openRows{r})
	err := r.inner.Close()
	r.cancel()
	r.gate.note(err)
	return err
}

// HasNextResultSet implements [sqldriver.RowsNextResultSet]: a procedure may return several result sets.
func (r *bridgeRows) HasNextResultSet() bool {
	if err := r.gate.Enter(); err != nil {
		return false
	}
	defer r.gate.Leave()
	sets, ok := r.inner.(sqldriver.RowsNextResultSet)
	return ok && sets.HasNextResultSet()
}

// NextResultSet implements [sqldriver.RowsNextResultSet].
func (r *bridgeRows) NextResultSet() error {
	if err := r.gate.Enter(); err != nil {
		return err
	}
	defer r.gate.Leave()
	sets, ok := r.inner.(sqldriver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	err := sets.NextResultSet()
	if err == nil {
		r.Refresh()
	} else if err != io.EOF {
		r.gate.note(err)
	}
	return err
}
