package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// gate is the writer's connection as one handler uses it through its *sql.Tx. It lets the handler work during its turn,
// and keeps it from ending the transaction, from changing the store's own tables, and from continuing after its turn.
// Each turn has a gate of its own, so that nothing that a handler keeps can affect the turn of another handler.
//
// Messages, events and durable operations are added through the handler's transaction
// too. The statements that add them are allowed by their exact text, because the rules
// see only an action and a table: for them a REPLACE, which removes rows, is an INSERT.
type gate struct {
	inner sqlitedriver.Conn
	kept  statements
	bound context.Context // ends when the turn has taken its longest time

	mu     sync.Mutex
	over   bool
	trusts bool         // while a statement of the store itself is prepared or executed
	stmts  []*gatedStmt // the statements that may still be open, the newest last
	open   int          // how many rows are open
	last   string       // the last statement that returned rows
}

var (
	_ driver.ConnBeginTx        = (*gate)(nil)
	_ driver.ConnPrepareContext = (*gate)(nil)
	_ driver.ExecerContext      = (*gate)(nil)
	_ driver.NamedValueChecker  = (*gate)(nil)
)

// errUndone is returned to a handler whose transaction ended before the
// handler's turn did. Later statements would be committed on their own.
var errUndone = errors.New("onceward: the transaction was undone by SQLite: " +
	"a statement was interrupted, asked for a rollback, or found the disk full")

// tablePrefix begins the names of the store's own tables and savepoints.
const tablePrefix = "onceward_"

// tellingPragmas take an argument and change nothing. ORMs inspect tables with them.
var tellingPragmas = []string{
	"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list",
	"foreign_key_check",
}

// trusted are the store's own statements that are run through a handler's transaction.
var trusted = []string{insertMessage, insertEvent}

// forbidden reports whether the rules for a handler's turn forbid an action. SQLite asks when it prepares a statement,
// so the rules do not slow down the store's own statements, which were prepared before.
func forbidden(action sqlite3.AuthorizerActionCode, first, second string) bool {
	switch action {
	case sqlite3.AUTH_TRANSACTION, sqlite3.AUTH_ATTACH, sqlite3.AUTH_DETACH:
		return true
	case sqlite3.AUTH_SAVEPOINT:
		return ours(second)
	case sqlite3.AUTH_PRAGMA:
		// A pragma without an argument only reads.
		return second != "" && !slices.Contains(tellingPragmas, strings.ToLower(first))
	case sqlite3.AUTH_INSERT, sqlite3.AUTH_UPDATE, sqlite3.AUTH_DELETE, sqlite3.AUTH_DROP_TABLE:
		return ours(first)
	case sqlite3.AUTH_CREATE_TABLE, sqlite3.AUTH_CREATE_TEMP_TABLE, sqlite3.AUTH_CREATE_VTABLE,
		sqlite3.AUTH_CREATE_VIEW, sqlite3.AUTH_CREATE_TEMP_VIEW:
		// A temporary table of the same name would take the place of the store's own.
		return ours(first)
	case sqlite3.AUTH_ALTER_TABLE:
		// The rules do not get the new name: a temporary table could get the name of one of the store's tables.
		return ours(second) || strings.EqualFold(first, "temp")
	case sqlite3.AUTH_DROP_INDEX, sqlite3.AUTH_CREATE_INDEX,
		sqlite3.AUTH_CREATE_TRIGGER, sqlite3.AUTH_CREATE_TEMP_TRIGGER:
		return ours(second)
	default:
		return false
	}
}

func ours(name string) bool { return strings.HasPrefix(strings.ToLower(name), tablePrefix) }

// close ends the turn. It waits for a running statement, and closes what was left open: after that, nothing that the
// handler does reaches the connection. tidy reports whether nothing was left open, and rows whether rows were left
// open: a prepared statement may stay open until the end of its transaction.
func (g *gate) close() (tidy, rows bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	tidy = true
	for _, stmt := range g.stmts {
		if !stmt.closed {
			tidy = false
			_ = stmt.Stmt.Close() // the error of its last step, which the handler has seen
		}
	}
	g.stmts = nil
	return tidy, g.open > 0
}

// during makes a call of the driver if the handler's turn and its transaction have not ended. The turn bounds the call,
// as the call's own context does, so that no statement runs without a limit.
func (g *gate) during(ctx context.Context, call func(ctx context.Context) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.over:
		return errRevoked
	case g.inner.Raw().GetAutocommit():
		return errUndone
	case ctx.Done() == nil:
		ctx = g.bound
	case g.bound.Done() != nil:
		ctx = &boundContext{Context: ctx, bound: g.bound}
	}
	return call(ctx)
}

// Enter implements [sqltx.Turn].
func (g *gate) Enter() error {
	g.mu.Lock()
	if g.over {
		g.mu.Unlock()
		return errRevoked
	}
	return nil
}

// Leave implements [sqltx.Turn].
func (g *gate) Leave() { g.mu.Unlock() }

// boundContext ends when either of two contexts ends. The driver calls only Err.
type boundContext struct {
	context.Context
	bound context.Context
}

// Err implements [context.Context].
func (c *boundContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	return c.bound.Err()
}

// BeginTx implements [driver.ConnBeginTx]. The transaction already exists: BeginTx only returns a handle for it.
func (g *gate) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return ownedTx{g}, nil }

// Begin implements [driver.Conn].
func (g *gate) Begin() (driver.Tx, error) { return ownedTx{g}, nil }

// ownedTx is a transaction that its holder cannot end.
type ownedTx struct{ gate *gate }

// Commit implements [driver.Tx].
func (ownedTx) Commit() error { return store.ErrTxOwned }

// Rollback implements [driver.Tx]. A handler may not roll back,
// and when the writer ends the handle, there is nothing to do.
func (tx ownedTx) Rollback() error {
	tx.gate.mu.Lock()
	defer tx.gate.mu.Unlock()
	if !tx.gate.over {
		return store.ErrTxOwned
	}
	return nil
}

// Close implements [driver.Conn]. It does nothing: the connection behind the gate belongs to the writer.
func (g *gate) Close() error { return nil }

// Prepare implements [driver.Conn].
func (g *gate) Prepare(query string) (driver.Stmt, error) {
	return g.PrepareContext(context.Background(), query)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (g *gate) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	var prepared *gatedStmt
	err := g.during(ctx, func(ctx context.Context) error {
		own := slices.Contains(trusted, query)
		defer g.trust(own)()
		stmt, err := g.kept.take(query), error(nil)
		if stmt == nil {
			stmt, err = g.inner.PrepareContext(ctx, query)
		}
		if err == nil {
			prepared = &gatedStmt{Stmt: stmt, gate: g, text: query, inputs: stmt.NumInput(), own: own}
			g.stmts = append(g.stmts, prepared)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return prepared, nil
}

// trust suspends the rules for a statement of the store's own, until the function that it returns is called.
func (g *gate) trust(own bool) (end func()) {
	g.trusts = own
	return func() { g.trusts = false }
}

// ExecContext implements [driver.ExecerContext].
func (g *gate) ExecContext(
	ctx context.Context, query string, args []driver.NamedValue,
) (result driver.Result, err error) {
	execer, ok := g.inner.(driver.ExecerContext)
	if !ok || len(args) > 0 {
		return nil, driver.ErrSkip
	}
	err = g.during(ctx, func(ctx context.Context) error {
		defer g.trust(slices.Contains(trusted, query))()
		result, err = execer.ExecContext(ctx, query, args)
		return err
	})
	return result, err
}

// CheckNamedValue implements [driver.NamedValueChecker]: the statement checks the arguments.
func (g *gate) CheckNamedValue(*driver.NamedValue) error { return nil }

// gatedStmt is a statement of one turn.
type gatedStmt struct {
	driver.Stmt
	gate   *gate
	text   string
	inputs int
	own    bool // it is a statement of the store
	// queried means that the statement has returned rows, which may stay open longer than the statement.
	queried bool
	closed  bool
}

// ExecContext implements [driver.StmtExecContext]. If another process has changed a table in between, SQLite prepares
// the statement and checks the rules again.
func (s *gatedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (result driver.Result, err error) {
	err = s.gate.during(ctx, func(ctx context.Context) error {
		defer s.gate.trust(s.own)()
		result, err = s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	})
	return result, err
}

// QueryContext implements [driver.StmtQueryContext].
func (s *gatedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.gate.during(ctx, func(ctx context.Context) error {
		inner, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
		if err == nil {
			s.queried = true
			s.gate.open++
			s.gate.last = s.text
			rows = &gatedRows{ColumnTypes: sqltx.NewColumnTypes(inner, s.gate), inner: inner, gate: s.gate}
		}
		return err
	})
	return rows, err
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (s *gatedStmt) CheckNamedValue(arg *driver.NamedValue) error {
	if checker, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(arg)
	}
	return driver.ErrSkip
}

// NumInput implements [driver.Stmt].
func (s *gatedStmt) NumInput() int { return s.inputs }

// Close implements [driver.Stmt]. After the turn there is nothing left to close.
func (s *gatedStmt) Close() error {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over || s.closed {
		return nil
	}
	s.closed = true
	for len(g.stmts) > 0 && g.stmts[len(g.stmts)-1].closed {
		g.stmts = g.stmts[:len(g.stmts)-1]
	}
	if s.queried {
		return s.Stmt.Close()
	}
	return g.kept.put(s.text, s.Stmt)
}

// gatedRows are the rows of one turn.
type gatedRows struct {
	sqltx.ColumnTypes
	inner driver.Rows
	gate  *gate
}

// Next implements [driver.Rows]. The bytes that the driver returns belong to SQLite until the next step. They are
// copied, because the turn may be revoked while the handler reads them.
func (r *gatedRows) Next(dest []driver.Value) error {
	return r.gate.during(context.Background(), func(context.Context) error {
		if err := r.inner.Next(dest); err != nil {
			return err
		}
		for i, value := range dest {
			if blob, ok := value.([]byte); ok {
				dest[i] = bytes.Clone(blob)
			}
		}
		return nil
	})
}

// Close implements [driver.Rows]. After the turn there is nothing left to close.
func (r *gatedRows) Close() error {
	r.gate.mu.Lock()
	defer r.gate.mu.Unlock()
	if r.gate.over {
		return nil
	}
	r.gate.open-- // database/sql closes rows once
	return r.inner.Close()
}
