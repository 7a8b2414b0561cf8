package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// gate stands between a handler and its transaction. It refuses to end the transaction, notices if that happened all
// the same, and is closed when the handler has returned: what is left of the handler, such as a goroutine or rows that
// were not closed, cannot touch what follows.
//
// It is memory of its own: what is left of the handler may keep it for longer than the transaction lasts.
type gate struct {
	store *Store
	id    store.ID
	conn  *pgx.Conn
	// sqlConn is the same as database/sql sees it.
	sqlConn *stdlib.Conn
	// answers says that there will be an answer, to which the work may add messages, adds that it added any, in either
	// way.
	answers bool
	adds    atomic.Bool

	// over is set before the gate is closed, so that no call gets in between; late, if the handler has not returned
	// by then.
	over   atomic.Bool
	late   atomic.Bool
	mu     sync.Mutex
	closed bool
	// open results are closed with the gate, because they keep the connection busy.
	results map[interface{ Close() }]struct{}
	sqlTx   *sql.Tx

	savepoints int
	// messages are those that the handler added to its answer.
	messages   []addition
	answerSize outbox.AnswerSize
	ctx        handlerContext

	// ended says that a statement of the handler ended the transaction. conflict is the first error by which one failed
	// because of the neighbours, with that statement; the last one is statement, and callCtx its context. gaveUp says
	// that the connection was lost with it, because its context ended.
	ended     atomic.Bool
	conflict  error
	statement string
	callCtx   context.Context
	gaveUp    error
	// busy says that the work waits for rows of database/sql.
	busy atomic.Bool
	// ending says that the last statement of the handler may end the transaction, whose answer may never come.
	ending atomic.Bool
	// raw says that the handler has taken the connection itself, objects that it can reach it by way of large objects.
	raw, objects atomic.Bool
}

var errOver = fmt.Errorf("%w: the handler has returned, and its transaction is over", store.ErrTxOwned)

func newGate(t *transaction) *gate {
	return &gate{store: t.store, id: t.id, conn: t.conn, sqlConn: t.acquired.conn, answers: t.answers}
}

// enter is held while the handler uses the connection.
func (g *gate) enter() (*pgx.Conn, error) {
	g.mu.Lock()
	if g.over.Load() {
		g.mu.Unlock()
		if g.late.Load() {
			return nil, errLate
		}
		return nil, errOver
	}
	return g.conn, nil
}

func (g *gate) leave() { g.mu.Unlock() }

// close waits for the call that is under way, and closes what was left open.
func (g *gate) close() {
	g.over.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut()
}

// shut closes what was left open. The caller holds the gate.
func (g *gate) shut() {
	g.closed = true
	if len(g.results) > 0 {
		g.store.logger.Warn("onceward: a handler left rows open; they are closed, and its transaction ends as it said",
			"last_statement", g.statement)
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

// lock keeps out a handler that has not returned. A call that is under way goes on.
func (g *gate) lock() {
	g.late.Store(true)
	g.over.Store(true)
}

// seize closes the gate in front of a handler that has not returned, and reports whether it is done with the
// connection: no call is under way, no result is open, and the last call did not take it past the gate.
func (g *gate) seize() bool {
	if !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if g.raw.Load() || g.objects.Load() || len(g.results) > 0 {
		return false
	}
	g.shut()
	return true
}

// seizeWithin closes the gate when the call that is under way has noticed that its connection was cut. It reports
// false if that takes longer, as it does where the handler's own code is called, such as a source of rows to copy.
func (g *gate) seizeWithin(limit time.Duration) bool {
	for end := time.Now().Add(limit); !g.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	defer g.mu.Unlock()
	g.shut()
	return true
}

// keep remembers a result until it is closed. The caller holds the gate.
func (g *gate) keep(r interface{ Close() }) {
	if g.results == nil {
		g.results = make(map[interface{ Close() }]struct{})
	}
	g.results[r] = struct{}{}
}

// exec runs a statement. The caller holds the gate.
func (g *gate) exec(ctx context.Context, conn *pgx.Conn, statement string, args []any) (pgconn.CommandTag, error) {
	g.inspect(ctx, statement)
	tag, err := conn.Exec(ctx, statement, args...)
	g.note(tag, err)
	return tag, err
}

// note looks at how a statement ended. The caller holds the gate.
func (g *gate) note(tag pgconn.CommandTag, err error) {
	switch verb, _, _ := strings.Cut(tag.String(), " "); verb {
	case "COMMIT", "BEGIN", "START":
		// A savepoint's end has another tag, but for its ROLLBACK, which the status tells apart.
		g.ended.Store(true)
	}
	g.noteStatus(err)
}

// meet notes an error if it comes from the neighbours: whatever the handler makes of it, all is undone and run again.
func (g *gate) meet(err error) {
	if g.conflict == nil && undone(err) {
		g.conflict = fmt.Errorf("%w, at the statement %.200q", err, g.statement)
	}
}

// noteStatus looks at the state of the transaction after a statement. The caller holds the gate.
func (g *gate) noteStatus(err error) {
	g.meet(err)
	lost := g.conn.IsClosed()
	if lost && err != nil && g.gaveUp == nil && g.callCtx != nil && g.callCtx.Err() != nil {
		g.gaveUp = sqltx.GaveUp(g.callCtx, g.statement)
	}
	if lost && g.ending.Load() || !lost && g.conn.PgConn().TxStatus() == statusIdle {
		g.ended.Store(true)
	}
}

// inspect notes whether a statement that is about to run may end the transaction. The caller holds the gate.
func (g *gate) inspect(ctx context.Context, statement string) {
	g.statement, g.callCtx = statement, ctx
	g.ending.Store(mayEnd(statement) && !g.conn.IsClosed())
}

// inspectBatch does so for the statements of a batch. The caller holds the gate.
func (g *gate) inspectBatch(ctx context.Context, batch *pgx.Batch) {
	ending := slices.ContainsFunc(batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return mayEnd(q.SQL) })
	g.statement, g.callCtx = "of a batch", ctx
	g.ending.Store(ending && !g.conn.IsClosed())
}

// mayEnd reports whether one of the statements in a text ends a transaction. A semicolon in a string makes it cautious.
func mayEnd(text string) bool {
	for more := true; more; {
		var one string
		one, text, more = strings.Cut(text, ";")
		verb := firstWord(one)
		if strings.EqualFold(verb, "commit") || strings.EqualFold(verb, "end") || strings.EqualFold(verb, "prepare") {
			return true
		}
	}
	return false
}

// firstWord is that of a statement, behind its comments.
func firstWord(statement string) string {
	for {
		statement = strings.TrimSpace(statement)
		switch {
		case strings.HasPrefix(statement, "--"):
			_, statement, _ = strings.Cut(statement, "\n")
		case strings.HasPrefix(statement, "/*"):
			_, statement, _ = strings.Cut(statement, "*/")
		default:
			if end := strings.IndexFunc(statement, func(r rune) bool { return r <= ' ' || r == '/' || r == '-' }); end >= 0 {
				return statement[:end]
			}
			return statement
		}
	}
}

// context carries the transaction to the handler.
func (g *gate) context(ctx context.Context) context.Context {
	g.ctx.Context, g.ctx.gate = ctx, g
	return &g.ctx
}

// Work that does not return would keep its key locked for ever. When its time is over the transaction is revoked:
// undone, its lock let go, and its key free again. The work goes on without it, and whatever it tries or returns comes
// to nothing.

const (
	// lateGrace is how long work may take to notice its deadline before its transaction is revoked.
	lateGrace = 250 * time.Millisecond
	// quietWait is how long a statement may take to notice that its connection was cut.
	quietWait = time.Second
)

// errLate is what late work sees, and what becomes of it, unless it may have ended the transaction itself.
var (
	errLate = fmt.Errorf("%w: the transaction was revoked, because the handler did not return in time",
		store.ErrDeadline)
	errLateRaw   = errors.New("the work did not return, and had taken the connection itself")
	errLateEnded = errors.New("the work ended the transaction that is not its to end, or may have, and did not return")
)

// watch revokes the transaction if the work has a limit and has not returned by then.
func (t *transaction) watch() {
	if t.limit > 0 {
		t.revoking.Add(1)
		t.watched = true
		t.timer = time.AfterFunc(t.limit+lateGrace, t.revoke)
	}
}

// inTime notes that the work has returned. If the transaction was revoked before, it waits until that is done and
// reports false.
func (t *transaction) inTime() bool {
	if t.watched && t.timer.Stop() {
		t.watched = false
	}
	if !t.watched || t.claimed.CompareAndSwap(false, true) {
		return true
	}
	t.revoking.Wait()
	return false
}

// revoke ends the transaction of work that is late, unless that has just returned.
func (t *transaction) revoke() {
	if !t.claimed.CompareAndSwap(false, true) {
		return
	}
	defer t.revoking.Done()
	quiet := false
	quiet, t.late = t.undoLate()
	t.store.leave(t.id, t.flight)
	t.store.waits.settled(t.hash)
	if t.gate.raw.Load() || t.gate.objects.Load() {
		return // the work can use it past the gate: it is released when the work returns
	}
	if !quiet {
		t.gate.close() // which waits as long as the call under way takes, that may be in the work's own code
	}
	t.close() // it is not used again: late work may know it
	t.acquired.release()
	t.released = true
}

// undoLate ends the transaction, and returns what that came to. It reports whether the work is done with the
// connection.
func (t *transaction) undoLate() (quiet bool, err error) {
	t.gate.lock()
	switch {
	case t.gate.raw.Load():
		err := t.plan.spoiled(errLateRaw, nil)
		t.cut()
		return false, err
	case t.gate.seize():
		err := t.finish(store.TxRollback, nil)
		if errors.Is(err, store.ErrOutcomeUnknown) {
			return true, err
		}
		return true, unavailable(errLate)
	default:
		t.cut()
		return t.endCut()
	}
}

// cut ends the connection under the work's hands. The server is told to give up what it is busy with: it would go on
// to its end.
func (t *transaction) cut() {
	pg := t.conn.PgConn()
	_ = pg.Conn().Close() // it is given up whether or not the server hears of it
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = pg.CancelRequest(ctx)
}

// endCut waits until a transaction whose connection was cut is over.
func (t *transaction) endCut() (quiet bool, err error) {
	quiet = t.gate.seizeWithin(quietWait)
	if t.gate.ended.Load() || t.gate.ending.Load() || t.gate.raw.Load() {
		return quiet, t.plan.spoiled(errLateEnded, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_, _, _ = t.ask(ctx) // which waits for the lock; in vain, the next one who wants it is told to come again
	return quiet, unavailable(errLate)
}
