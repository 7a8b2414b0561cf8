package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/sqltx"
)

// SQL returns the *sql.Tx of the transaction. After the handler has returned, the *sql.Tx is over.
func (g *gate) SQL() *sql.Tx {
	return g.Gate.SQL(g.store.bridge, func() driver.Conn { return &bridgeConn{gate: g, inner: g.sqlConn} })
}

// Holds reports whether the transaction is on a connection of a pool of pgx.
func (g *gate) Holds(pool any) bool {
	shared, ok := g.store.handlers.(*poolSource)
	return ok && pool == any(shared.pool)
}

// bridgeConn lets database/sql use the connection of a transaction through its gate.
type bridgeConn struct {
	sqltx.Begun
	gate  *gate
	inner *stdlib.Conn
}

// The interfaces by which database/sql uses a connection.
var (
	_ driver.ConnBeginTx        = (*bridgeConn)(nil)
	_ driver.ConnPrepareContext = (*bridgeConn)(nil)
	_ driver.ExecerContext      = (*bridgeConn)(nil)
	_ driver.QueryerContext     = (*bridgeConn)(nil)
	_ driver.NamedValueChecker  = (*bridgeConn)(nil)
)

// CheckNamedValue leaves values to pgx, which knows more types than database/sql.
func (c *bridgeConn) CheckNamedValue(v *driver.NamedValue) error { return c.inner.CheckNamedValue(v) }

// Prepare prepares a statement.
func (c *bridgeConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement.
func (c *bridgeConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.gate.Enter(); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	c.gate.inspect(ctx, query)
	stmt, err := c.inner.PrepareContext(ctx, query)
	if err != nil {
		c.gate.note(pgconn.CommandTag{}, err)
		return nil, err
	}
	return &bridgeStmt{conn: c, query: query, inner: stmt.(*stdlib.Stmt)}, nil
}

// ExecContext runs a statement.
func (c *bridgeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	conn, err := c.gate.enter()
	if err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	// Past the driver of database/sql, which does not return the tag of a statement.
	tag, err := c.gate.exec(ctx, conn, query, values)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// QueryContext runs a statement that returns rows.
func (c *bridgeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.gate.Enter(); err != nil {
		return nil, err
	}
	defer c.gate.Leave()
	c.gate.inspect(ctx, query)
	c.gate.Busy.Store(true)
	defer c.gate.Busy.Store(false)
	ctx, stop := sqltx.WhileBusy(ctx, &c.gate.Busy)
	rows, err := c.inner.QueryContext(ctx, query, args)
	if err != nil {
		stop()
		c.gate.noteStatus(err)
		return nil, err
	}
	open := &bridgeRows{Rows: rows.(*stdlib.Rows), gate: c.gate, stop: stop}
	c.gate.Keep(rowsCloser{open})
	return open, nil
}

// rowsCloser closes rows that are not read any more.
type rowsCloser struct{ rows *bridgeRows }

// Close ends the rows. Reading the rest of them may fail because of a concurrent transaction.
func (c rowsCloser) Close() { c.rows.gate.meet(c.rows.end()) }

// bridgeRows are rows that a handler reads. They end with the gate.
type bridgeRows struct {
	*stdlib.Rows
	gate *gate
	stop context.CancelFunc
}

// end ends the rows and their context.
func (r *bridgeRows) end() error {
	defer r.stop()
	return r.Rows.Close()
}

// Next reads the next row.
func (r *bridgeRows) Next(dest []driver.Value) error {
	if err := r.gate.Enter(); err != nil {
		return err
	}
	defer r.gate.Leave()
	r.gate.Busy.Store(true)
	defer r.gate.Busy.Store(false)
	err := r.Rows.Next(dest)
	r.gate.noteStatus(err)
	return err
}

// Close ends the rows.
func (r *bridgeRows) Close() error {
	if err := r.gate.Enter(); err != nil {
		return nil // the gate has closed them
	}
	defer r.gate.Leave()
	r.gate.Forget(rowsCloser{r})
	err := r.end()
	r.gate.noteStatus(err)
	return err
}

// bridgeStmt is a prepared statement. It is run by its text, which pgx has prepared.
type bridgeStmt struct {
	conn  *bridgeConn
	query string
	inner *stdlib.Stmt
}

// Close ends the statement.
func (s *bridgeStmt) Close() error {
	if err := s.conn.gate.Enter(); err != nil {
		return nil // the statement stays with its connection, and is closed with it
	}
	defer s.conn.gate.Leave()
	return s.inner.Close()
}

// NumInput returns the number of the statement's parameters.
func (s *bridgeStmt) NumInput() int { return s.inner.NumInput() }

// Exec is not called, because there is ExecContext.
func (s *bridgeStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query is not called, because there is QueryContext.
func (s *bridgeStmt) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

// ExecContext runs the statement.
func (s *bridgeStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

// QueryContext runs the statement.
func (s *bridgeStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}
