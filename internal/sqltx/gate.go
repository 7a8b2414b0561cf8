// Package sqltx holds what the SQL stores have in common in the transactions that they run for callers: how handlers
// use the transactions, how the transactions end, and how often they are tried.
package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/store"
)

// The errors of a handler that uses its transaction after the transaction is over.
var (
	ErrOver = fmt.Errorf("%w: the handler has returned, and its transaction is over", store.ErrTxOwned)
	ErrLate = fmt.Errorf("%w: the transaction was revoked, because the handler did not return in time",
		store.ErrDeadline)
)

// Gate stands between a handler and its transaction. It lets one call of the handler at a time use the connection. It
// is closed when the handler has returned: a goroutine or open rows that the handler left cannot affect what the
// connection is used for afterwards.
type Gate struct {
	// over is set before the gate is closed, so that no call begins in between. late is set if the handler
	// has not returned by then.
	over, late atomic.Bool
	mu         sync.Mutex
	closed     bool
	// results are the open results. They keep the connection busy, so they are closed with the gate.
	results map[Result]struct{}
	sqlTx   *sql.Tx

	// Statement is the last statement of the handler, and CallCtx is its context. While the gate is open, a caller
	// holds it to use these fields and the errors below.
	Statement string
	CallCtx   context.Context
	// Conflict is the first error of a statement that failed because of concurrent
	// transactions. It names the statement.
	Conflict error
	// GaveUp is the error of a connection that was lost because the context of its statement ended, or nil.
	GaveUp error
	// Busy means that the work waits for the connection: see [WhileBusy].
	Busy atomic.Bool
	// Ending means that a statement of the handler may have ended the transaction. The reply to that
	// statement may never arrive.
	Ending atomic.Bool
}

// Result is a result of a statement that keeps the connection busy until it is closed, such as rows.
type Result interface{ Close() }

// Enter begins a call of the handler. The gate is held until Leave.
func (g *Gate) Enter() error {
	g.mu.Lock()
	if !g.over.Load() {
		return nil
	}
	g.mu.Unlock()
	if g.late.Load() {
		return ErrLate
	}
	return ErrOver
}

// Leave ends a call of the handler.
func (g *Gate) Leave() { g.mu.Unlock() }

// Do runs a call of the handler. If the gate is closed, it returns the reason.
func (g *Gate) Do(call func() error) error {
	if err := g.Enter(); err != nil {
		return err
	}
	defer g.Leave()
	return call()
}

// Keep adds an open result. The caller holds the gate.
func (g *Gate) Keep(r Result) {
	if g.results == nil {
		g.results = make(map[Result]struct{})
	}
	g.results[r] = struct{}{}
}

// Forget removes a result that was closed. The caller holds the gate.
func (g *Gate) Forget(r Result) { delete(g.results, r) }

// Open returns the open results. The caller holds the gate.
func (g *Gate) Open() map[Result]struct{} { return g.results }

// Close waits for the running call, and then closes the gate and the results that were left open.
func (g *Gate) Close(log *slog.Logger) {
	g.over.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut(log)
}

// shut closes the gate and the results that were left open. The caller holds the gate.
func (g *Gate) shut(log *slog.Logger) {
	g.closed = true
	if len(g.results) > 0 {
		WarnRowsLeft(log, g.Statement)
	}
	for r := range g.results {
		r.Close()
	}
	g.results = nil
	if tx := g.sqlTx; tx != nil {
		// Rollback only ends the *sql.Tx. It waits until the rows of the *sql.Tx are closed,
		// which can do no harm any more.
		go func() { _ = tx.Rollback() }()
	}
}

// WarnRowsLeft logs that a handler did not close rows.
func WarnRowsLeft(log *slog.Logger, statement string) {
	log.Warn("onceward: a handler left rows open; they are closed, and its transaction ends as it said",
		"last_statement", statement)
}

// Lock refuses new calls of a handler that has not returned. A running call continues.
func (g *Gate) Lock() {
	g.late.Store(true)
	g.over.Store(true)
}

// Seize closes the gate for a handler that has not returned, if the handler is done with the connection, and reports
// whether it did. The handler is done if no call is running, no result is open, and free, which is called while the
// gate is held, returns true.
func (g *Gate) Seize(log *slog.Logger, free func() bool) bool {
	if !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if len(g.results) > 0 || !free() {
		return false
	}
	g.shut(log)
	return true
}

// SeizeCut closes the gate when the running call has returned because its connection was cut. It returns false if that
// takes longer than [QuietWait], as it may if the call runs code of the handler, such as a source of rows to copy.
func (g *Gate) SeizeCut(log *slog.Logger) bool {
	for end := time.Now().Add(QuietWait); !g.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	defer g.mu.Unlock()
	g.shut(log)
	return true
}

// Try calls do while it holds the gate. If a call is running, Try does nothing.
func (g *Gate) Try(do func()) {
	if g.mu.TryLock() {
		defer g.mu.Unlock()
		do()
	}
}

// Meet records an error that concurrent transactions caused. The transaction is then undone and run again, even if the
// handler ignores the error. The caller holds the gate.
func (g *Gate) Meet(err error) {
	if g.Conflict == nil {
		g.Conflict = fmt.Errorf("%w, at the statement %.200q", err, g.Statement)
	}
}

// Lost records in GaveUp that the connection was lost with an error, if the context of the statement has ended.
// The caller holds the gate.
func (g *Gate) Lost(err error) {
	if err != nil && g.GaveUp == nil && g.CallCtx != nil && g.CallCtx.Err() != nil {
		g.GaveUp = GaveUp(g.CallCtx, g.Statement)
	}
}

// SQL returns the *sql.Tx of the transaction. It uses the connection that connect returns. It has ended if
// the handler has returned.
func (g *Gate) SQL(b *Bridge, connect func() driver.Conn) *sql.Tx {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sqlTx != nil {
		return g.sqlTx
	}
	tx, err := b.begin(connect())
	if err != nil {
		return nil
	}
	g.sqlTx = tx
	if g.closed {
		_ = tx.Rollback()
	}
	return tx
}

// Handle is the part of a store's gate that the context of a handler uses.
type Handle interface {
	// SQL returns the *sql.Tx of the transaction.
	SQL() *sql.Tx
	// Holds reports whether the transaction is on a connection of a pool.
	Holds(pool any) bool
}

// Context carries a transaction to its handler. It is a part of the transaction, so a handler that only takes the
// transaction costs no further context. The *sql.Tx is made when the handler asks for it.
type Context struct {
	context.Context
	key  any
	gate Handle

	once   sync.Once
	values context.Context
}

// With returns the context of a handler, in which a store finds its gate by a key.
func (c *Context) With(ctx context.Context, key any, gate Handle) context.Context {
	c.Context, c.key, c.gate = ctx, key, gate
	return c
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	if key == c.key {
		return c.gate
	}
	if asked, ok := key.(PoolKey); ok && c.gate.Holds(asked.Pool) {
		return c.gate
	}
	c.once.Do(func() { c.values = store.ContextWithTxFunc(c.Context, c.gate.SQL) })
	return c.values.Value(key)
}
