package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/ncruces/go-sqlite3"
	sqlitedriver "github.com/ncruces/go-sqlite3/driver"
	"github.com/onceward/onceward"
)

// gate is the writer's connection as a handler sees it through its *sql.Tx. It lets the handler work while it is its turn,
// and keeps it from ending the transaction, from touching the store's own tables, and from going on after its turn.
type gate struct {
	inner sqlitedriver.Conn

	mu    sync.Mutex
	turn  uint64          // which turn it is
	taken bool            // whether a handler has it
	bound context.Context // ends with the turn: bounds statements that have no context of their own
}

// tablePrefix begins the names of the store's own tables and savepoints.
const tablePrefix = "onceward_"

// guard installs the rules that hold while a handler has its turn. They are checked when a statement is prepared, so the
// store's own statements, prepared before, do not pay for them.
func (g *gate) guard() error {
	return g.inner.Raw().SetAuthorizer(func(action sqlite3.AuthorizerActionCode, first, second, _, _ string) sqlite3.AuthorizerReturnCode {
		if g.taken && forbidden(action, first, second) {
			return sqlite3.AUTH_DENY
		}
		return sqlite3.AUTH_OK
	})
}

func forbidden(action sqlite3.AuthorizerActionCode, first, second string) bool {
	switch action {
	case sqlite3.AUTH_TRANSACTION, sqlite3.AUTH_ATTACH, sqlite3.AUTH_DETACH:
		return true
	case sqlite3.AUTH_SAVEPOINT:
		return ours(second)
	case sqlite3.AUTH_PRAGMA:
		return second != ""
	case sqlite3.AUTH_INSERT, sqlite3.AUTH_UPDATE, sqlite3.AUTH_DELETE, sqlite3.AUTH_DROP_TABLE:
		return ours(first)
	case sqlite3.AUTH_ALTER_TABLE, sqlite3.AUTH_DROP_INDEX, sqlite3.AUTH_CREATE_TRIGGER, sqlite3.AUTH_CREATE_INDEX:
		return ours(second)
	default:
		return false
	}
}

func ours(name string) bool { return strings.HasPrefix(strings.ToLower(name), tablePrefix) }

// open starts a handler's turn.
func (g *gate) open(bound context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn++
	g.taken, g.bound = true, bound
}

// close ends it. A statement that is running is waited for; what comes later is refused.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = false
}

// during runs a driver call if it is still the turn that the caller belongs to. A context that cannot end is replaced by
// that of the turn, so that no statement runs for ever.
func (g *gate) during(ctx context.Context, turn uint64, call func(ctx context.Context) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.taken || g.turn != turn {
		return errRevoked
	}
	if ctx.Done() == nil {
		ctx = g.bound
	}
	return call(ctx)
}

func (g *gate) currentTurn() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turn
}

// BeginTx implements [driver.ConnBeginTx]. The transaction is already there: this only makes a handle for it.
func (g *gate) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return ownedTx{g}, nil }

// Begin implements [driver.Conn].
func (g *gate) Begin() (driver.Tx, error) { return ownedTx{g}, nil }

// ownedTx is a transaction that its holder cannot end.
type ownedTx struct{ gate *gate }

// Commit implements [driver.Tx].
func (ownedTx) Commit() error { return onceward.ErrTxOwned }

// Rollback implements [driver.Tx]: refused to a handler, and nothing to do when the writer ends the handle.
func (tx ownedTx) Rollback() error {
	tx.gate.mu.Lock()
	defer tx.gate.mu.Unlock()
	if tx.gate.taken {
		return onceward.ErrTxOwned
	}
	return nil
}

// Close implements [driver.Conn]. A connection closes only after its statements.
func (g *gate) Close() error {
	var errs []error
	for _, stmt := range slices.Collect(g.inner.Raw().Stmts()) {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, g.inner.Close())...)
}

// Prepare implements [driver.Conn].
func (g *gate) Prepare(query string) (driver.Stmt, error) {
	return g.PrepareContext(context.Background(), query)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (g *gate) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	turn := g.currentTurn()
	var prepared *gatedStmt
	err := g.during(ctx, turn, func(ctx context.Context) error {
		stmt, err := g.inner.PrepareContext(ctx, query)
		if err == nil {
			prepared = &gatedStmt{Stmt: stmt, gate: g, turn: turn}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return prepared, nil
}

// ExecContext implements [driver.ExecerContext].
func (g *gate) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (result driver.Result, err error) {
	execer, ok := g.inner.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = g.during(ctx, g.currentTurn(), func(ctx context.Context) error {
		result, err = execer.ExecContext(ctx, query, args)
		return err
	})
	return result, err
}

// gatedStmt is a statement of one turn.
type gatedStmt struct {
	driver.Stmt
	gate *gate
	turn uint64
}

// ExecContext implements [driver.StmtExecContext].
func (s *gatedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (result driver.Result, err error) {
	err = s.gate.during(ctx, s.turn, func(ctx context.Context) error {
		result, err = s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	})
	return result, err
}

// QueryContext implements [driver.StmtQueryContext].
func (s *gatedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.gate.during(ctx, s.turn, func(ctx context.Context) error {
		inner, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
		if err == nil {
			rows = &gatedRows{Rows: inner, stmt: s}
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
func (s *gatedStmt) NumInput() int {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return s.Stmt.NumInput()
}

// Close implements [driver.Stmt]. It is allowed at any time: it only frees what the turn used.
func (s *gatedStmt) Close() error {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return s.Stmt.Close()
}

// gatedRows are the rows of one turn.
type gatedRows struct {
	driver.Rows
	stmt *gatedStmt
}

// Next implements [driver.Rows].
func (r *gatedRows) Next(dest []driver.Value) error {
	err := r.stmt.gate.during(context.Background(), r.stmt.turn, func(context.Context) error { return r.Rows.Next(dest) })
	if err == errRevoked {
		clear(dest)
		return io.ErrUnexpectedEOF
	}
	return err
}

// Columns implements [driver.Rows].
func (r *gatedRows) Columns() []string {
	r.stmt.gate.mu.Lock()
	defer r.stmt.gate.mu.Unlock()
	return r.Rows.Columns()
}

// Close implements [driver.Rows].
func (r *gatedRows) Close() error {
	r.stmt.gate.mu.Lock()
	defer r.stmt.gate.mu.Unlock()
	return r.Rows.Close()
}

// ColumnTypeDatabaseTypeName implements [driver.RowsColumnTypeDatabaseTypeName].
func (r *gatedRows) ColumnTypeDatabaseTypeName(index int) string {
	r.stmt.gate.mu.Lock()
	defer r.stmt.gate.mu.Unlock()
	if typed, ok := r.Rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return typed.ColumnTypeDatabaseTypeName(index)
	}
	return ""
}
