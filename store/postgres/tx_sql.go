package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/sqltx"
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
	ctx := context.WithValue(context.Background(), bridgeKey{}, &bridgeConn{gate: g, inner: g.sqlConn})
	tx, err := g.store.bridge.db.BeginTx(ctx, nil)
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

// Connect implements [driver.Connector].
func (bridgeConnector) Connect(ctx context.Context) (driver.Conn, error) {
	if conn, ok := ctx.Value(bridgeKey{}).(*bridgeConn); ok {
		return conn, nil
	}
	return nil, errors.New("postgres: there is no connection but that of the transaction")
}

// Driver implements [driver.Connector].
func (bridgeConnector) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// bridgeConn lets database/sql use the connection of a transaction through its gate.
type bridgeConn struct {
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

// BeginTx has nothing to do: the transaction has begun.
func (c *bridgeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return ownedTx{}, nil
}

// Begin has nothing to do either.
func (c *bridgeConn) Begin() (driver.Tx, error) { return ownedTx{}, nil }

// Close leaves the connection to its pool.
func (c *bridgeConn) Close() error { return nil }

// CheckNamedValue leaves values to pgx, which knows more types than database/sql.
func (c *bridgeConn) CheckNamedValue(v *driver.NamedValue) error { return c.inner.CheckNamedValue(v) }

// Prepare prepares a statement.
func (c *bridgeConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement.
func (c *bridgeConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if _, err := c.gate.enter(); err != nil {
		return nil, err
	}
	defer c.gate.leave()
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
	defer c.gate.leave()
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	// Past the driver of database/sql, which does not tell the tag of a statement.
	tag, err := c.gate.exec(ctx, conn, query, values)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// QueryContext runs a statement that returns rows.
func (c *bridgeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if _, err := c.gate.enter(); err != nil {
		return nil, err
	}
	defer c.gate.leave()
	c.gate.inspect(ctx, query)
	c.gate.busy.Store(true)
	defer c.gate.busy.Store(false)
	ctx, stop := sqltx.WhileBusy(ctx, &c.gate.busy)
	rows, err := c.inner.QueryContext(ctx, query, args)
	if err != nil {
		stop()
		c.gate.noteStatus(err)
		return nil, err
	}
	open := &bridgeRows{Rows: rows.(*stdlib.Rows), gate: c.gate, stop: stop}
	c.gate.keep(rowsCloser{open})
	return open, nil
}

// rowsCloser closes rows that are not read any more.
type rowsCloser struct{ rows *bridgeRows }

// Close ends the rows.
func (c rowsCloser) Close() { _ = c.rows.end() }

// bridgeRows are rows that a handler reads. They end with the gate.
type bridgeRows struct {
	*stdlib.Rows
	gate *gate
	stop context.CancelFunc
}

// end ends the rows, and what ends them early.
func (r *bridgeRows) end() error {
	defer r.stop()
	return r.Rows.Close()
}

// Next reads the next row.
func (r *bridgeRows) Next(dest []driver.Value) error {
	if _, err := r.gate.enter(); err != nil {
		return err
	}
	defer r.gate.leave()
	r.gate.busy.Store(true)
	defer r.gate.busy.Store(false)
	err := r.Rows.Next(dest)
	r.gate.noteStatus(err)
	return err
}

// Close ends the rows.
func (r *bridgeRows) Close() error {
	if _, err := r.gate.enter(); err != nil {
		return nil // the gate has closed them
	}
	defer r.gate.leave()
	delete(r.gate.results, rowsCloser{r})
	err := r.end()
	r.gate.noteStatus(err)
	return err
}

// bridgeStmt is a prepared statement. It runs by its text, which pgx has prepared.
type bridgeStmt struct {
	conn  *bridgeConn
	query string
	inner *stdlib.Stmt
}

// Close ends the statement.
func (s *bridgeStmt) Close() error {
	if _, err := s.conn.gate.enter(); err != nil {
		return nil // it stays with the connection, which closes it in its time
	}
	defer s.conn.gate.leave()
	return s.inner.Close()
}

// NumInput is the number of the statement's parameters.
func (s *bridgeStmt) NumInput() int { return s.inner.NumInput() }

// Exec is not called: ExecContext is there.
func (s *bridgeStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query is not called: QueryContext is there.
func (s *bridgeStmt) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

// ExecContext runs the statement.
func (s *bridgeStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

// QueryContext runs the statement.
func (s *bridgeStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

// ownedTx is what database/sql ends when the *sql.Tx is ended: nothing.
type ownedTx struct{}

// Commit refuses.
func (ownedTx) Commit() error { return store.ErrTxOwned }

// Rollback refuses.
func (ownedTx) Rollback() error { return store.ErrTxOwned }
