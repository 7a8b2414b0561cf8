// Package sqltx is what the SQL stores share of the transactions that they run for callers: how handlers reach them,
// how they end, and how often they are tried.
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

// Errors that a handler gets that uses its transaction for too long.
var (
	ErrOver = fmt.Errorf("%w: the handler has returned, and its transaction is over", store.ErrTxOwned)
	ErrLate = fmt.Errorf("%w: the transaction was revoked, because the handler did not return in time",
		store.ErrDeadline)
)

// Gate stands between a handler and its transaction. It lets one call of the handler use the connection at a time, and
// is closed when the handler has returned: what is left of the handler, such as a goroutine or rows that were not
// closed, cannot touch what follows.
type Gate struct {
	// over is set before the gate is closed, so that no call gets in between; late, if the handler has not returned by
	// then.
	over, late atomic.Bool
	mu         sync.Mutex
	closed     bool
	// results are open, and closed with the gate, because they keep the connection busy.
	results map[Result]struct{}
	sqlTx   *sql.Tx

	// Statement is the last statement of the handler, and CallCtx its context. The caller holds the gate for all of these.
	Statement string
	CallCtx   context.Context
	// Conflict is the first error by which a statement failed because of the neighbours, with that statement.
	Conflict error
	// GaveUp is set if the connection was lost with a statement because the context of the statement ended.
	GaveUp error
	// Busy is set while the work waits for the connection. See [WhileBusy].
	Busy atomic.Bool
	// Ending is set if a statement of the handler may have ended the transaction, and its answer may never come.
	Ending atomic.Bool
}

// Result is what a statement has returned that keeps the connection busy, such as rows.
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

// Do makes a call of the handler, or returns why the gate is closed.
func (g *Gate) Do(call func() error) error {
	if err := g.Enter(); err != nil {
		return err
	}
	defer g.Leave()
	return call()
}

// Keep notes a result that is open. The caller holds the gate.
func (g *Gate) Keep(r Result) {
	if g.results == nil {
		g.results = make(map[Result]struct{})
	}
	g.results[r] = struct{}{}
}

// Forget notes that a result is closed. The caller holds the gate.
func (g *Gate) Forget(r Result) { delete(g.results, r) }

// Open returns the results that are open. The caller holds the gate.
func (g *Gate) Open() map[Result]struct{} { return g.results }

// Close waits for the call that is under way, and closes what was left open.
func (g *Gate) Close(log *slog.Logger) {
	g.over.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut(log)
}

// shut closes what was left open. The caller holds the gate.
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
		// It only ends the handle, for which it waits until the handle's rows are closed; they can do no harm any more.
		go func() { _ = tx.Rollback() }()
	}
}

// WarnRowsLeft logs that a handler did not close rows.
func WarnRowsLeft(log *slog.Logger, statement string) {
	log.Warn("onceward: a handler left rows open; they are closed, and its transaction ends as it said",
		"last_statement", statement)
}

// Lock keeps out a handler that has not returned. A call that is under way continues.
func (g *Gate) Lock() {
	g.late.Store(true)
	g.over.Store(true)
}

// Seize closes the gate in front of a handler that has not returned, and reports whether the handler is done with the
// connection: no call is under way, no result is open, and free, which is called while the gate is held, agrees.
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

// SeizeCut closes the gate when the call that is under way has noticed that its connection was cut. It reports false if
// that takes longer than [QuietWait], as it does where code of the handler is called, such as a source of rows to copy.
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

// Try calls do if no call is under way, and no other begins meanwhile.
func (g *Gate) Try(do func()) {
	if g.mu.TryLock() {
		defer g.mu.Unlock()
		do()
	}
}

// Meet notes an error that comes from the neighbours: whatever the handler makes of it, all is undone and run again. The
// caller holds the gate.
func (g *Gate) Meet(err error) {
	if g.Conflict == nil {
		g.Conflict = fmt.Errorf("%w, at the statement %.200q", err, g.Statement)
	}
}

// Lost notes an error with which the connection was lost, if the context of the statement has ended. The caller holds
// the gate.
func (g *Gate) Lost(err error) {
	if err != nil && g.GaveUp == nil && g.CallCtx != nil && g.CallCtx.Err() != nil {
		g.GaveUp = GaveUp(g.CallCtx, g.Statement)
	}
}

// SQL returns the *sql.Tx of the transaction, by which database/sql uses the connection that connect returns. It is over
// if the handler has returned.
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

// Handle is a gate as the context of a handler knows it.
type Handle interface {
	// SQL returns the *sql.Tx of the transaction.
	SQL() *sql.Tx
	// Holds reports whether the transaction is on a connection of a pool.
	Holds(pool any) bool
}

// Context carries a transaction to its handler. It is a part of the transaction, so that a handler which only takes the
// transaction pays for no other context; the *sql.Tx is made when it is asked for.
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
