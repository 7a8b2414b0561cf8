package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// gate stands between a handler and its transaction. It refuses calls that end the transaction, and detects if the
// transaction was ended anyway.
//
// A gate is allocated apart from its transaction, because a goroutine or rows that the handler left may keep the gate
// for longer than the transaction lasts.
type gate struct {
	sqltx.Gate
	store *Store
	id    store.ID
	conn  *pgx.Conn
	// sqlConn is the connection as database/sql sees it.
	sqlConn *stdlib.Conn
	// answers means that there will be an answer, to which the work may add messages. adds means that the work has
	// added a message, to the answer or with a statement of its own.
	answers bool
	adds    atomic.Bool

	// batch is the last statement, if that is a batch.
	batch      *pgx.Batch
	savepoints int
	// messages are the messages that the handler added to its answer.
	messages   []addition
	answerSize outbox.AnswerSize
	ctx        sqltx.Context

	// ended means that a statement of the handler ended the transaction.
	ended atomic.Bool
	// raw means that the handler has taken the connection itself. objects means that the handler can reach the
	// connection through large objects.
	raw, objects atomic.Bool
}

func newGate(t *transaction) *gate {
	return &gate{store: t.store, id: t.id, conn: t.conn, sqlConn: t.acquired.conn, answers: t.answers}
}

// enter begins a call of the handler, which ends with Leave, and returns the connection.
func (g *gate) enter() (*pgx.Conn, error) {
	if err := g.Enter(); err != nil {
		return nil, err
	}
	return g.conn, nil
}

// within reports whether the handler has only used the connection through the gate.
func (g *gate) within() bool { return !g.raw.Load() && !g.objects.Load() }

// exec runs a statement. The caller holds the gate.
func (g *gate) exec(ctx context.Context, conn *pgx.Conn, statement string, args []any) (pgconn.CommandTag, error) {
	g.inspect(ctx, statement)
	tag, err := conn.Exec(ctx, statement, args...)
	g.note(tag, err)
	return tag, err
}

// note checks whether a statement ended the transaction. The caller holds the gate.
func (g *gate) note(tag pgconn.CommandTag, err error) {
	switch verb, _, _ := strings.Cut(tag.String(), " "); verb {
	case "COMMIT", "BEGIN", "START":
		// The end of a savepoint has another tag, except for its ROLLBACK, which the status distinguishes.
		g.ended.Store(true)
	}
	g.noteStatus(err)
}

// meet records an error that concurrent transactions caused. The error of a statement with NOWAIT does not count,
// because the statement asked for it. The caller holds the gate.
func (g *gate) meet(err error) {
	if undone(err) || sqlState(err) == stateLockNotAvailable && !g.noWait() {
		g.Meet(err)
	}
}

// noWait reports whether the last statement, or one of the last batch, has NOWAIT.
func (g *gate) noWait() bool {
	has := func(statement string) bool { return strings.Contains(strings.ToUpper(statement), "NOWAIT") }
	return has(g.Statement) ||
		g.batch != nil && slices.ContainsFunc(g.batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return has(q.SQL) })
}

// noteStatus checks the state of the transaction after a statement. The caller holds the gate.
func (g *gate) noteStatus(err error) {
	g.meet(err)
	lost := g.conn.IsClosed()
	if lost {
		g.Lost(err)
	}
	if lost && g.Ending.Load() || !lost && g.conn.PgConn().TxStatus() == statusIdle {
		g.ended.Store(true)
	}
}

// leftOpen is a result that a handler may leave open, rows or a batch, with its statement.
type leftOpen struct {
	gate      *gate
	close     func() error
	statement string
	ctx       context.Context
	batch     *pgx.Batch
	ending    bool // the statement may end the transaction
}

// keep records that the result of the last statement is open, and the function with which the gate closes it.
// The caller holds the gate.
func (g *gate) keep(close func() error) *leftOpen {
	l := &leftOpen{g, close, g.Statement, g.CallCtx, g.batch, g.Ending.Load()}
	g.Keep(l)
	return l
}

// Close implements [sqltx.Result]. Reading the rest of the result may fail because of a concurrent transaction, or
// close the connection if the context of the statement has ended.
func (l *leftOpen) Close() {
	l.gate.Statement, l.gate.CallCtx, l.gate.batch = l.statement, l.ctx, l.batch
	if l.ending {
		l.gate.Ending.Store(true) // a later statement, which was refused, may have cleared it
	}
	l.gate.noteStatus(l.close())
}

// inspect records whether a statement that is about to run may end the transaction. The caller holds the gate.
func (g *gate) inspect(ctx context.Context, statement string) {
	g.Statement, g.CallCtx, g.batch = statement, ctx, nil
	g.Ending.Store(mayEnd(statement) && !g.conn.IsClosed())
}

// inspectBatch does what inspect does, for the statements of a batch. The caller holds the gate.
func (g *gate) inspectBatch(ctx context.Context, batch *pgx.Batch) {
	ending := slices.ContainsFunc(batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return mayEnd(q.SQL) })
	g.Statement, g.CallCtx, g.batch = "of a batch", ctx, batch
	g.Ending.Store(ending && !g.conn.IsClosed())
}

// mayEnd reports whether one of the statements in a text ends a transaction. A semicolon in a string may make it report
// true for a text that does not.
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

// firstWord returns the first word of a statement after its comments.
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

// The errors of late work that may have ended the transaction itself.
var (
	errLateRaw   = errors.New("the work did not return, and had taken the connection itself")
	errLateEnded = errors.New("the work ended the transaction that is not its to end, or may have, and did not return")
)

// Revoke implements [sqltx.Revocable].
func (t *transaction) Revoke() {
	quiet := false
	quiet, t.late = t.undoLate()
	t.store.flights.Leave(t.id, t.flight)
	t.store.waits.settled(t.hash)
	if !t.gate.within() {
		return // the work can use the connection past the gate: it is released when the work returns
	}
	if !quiet {
		t.gate.Close(t.store.logger) // it waits for the running call, which may be in the work's own code
	}
	t.close() // the connection is not used again: late work may know it
	t.acquired.release()
	t.released = true
}

// undoLate ends the transaction of late work, and returns the error of the call. quiet reports whether the work is
// done with the connection.
func (t *transaction) undoLate() (quiet bool, err error) {
	t.gate.Lock()
	switch {
	case t.gate.raw.Load():
		err := t.plan.spoiled(errLateRaw, nil)
		t.cut()
		return false, err
	case t.gate.Seize(t.store.logger, t.gate.within):
		err := t.finish(store.TxRollback, nil)
		if errors.Is(err, store.ErrOutcomeUnknown) {
			return true, err
		}
		return true, unavailable(sqltx.ErrLate)
	default:
		t.cut()
		return t.endCut()
	}
}

// cut closes the connection while the work is using it, and asks the server to cancel the running statement, which
// would otherwise run to its end.
func (t *transaction) cut() {
	pg := t.conn.PgConn()
	_ = pg.Conn().Close() // the connection is dropped even if the server does not notice
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = pg.CancelRequest(ctx)
}

// endCut waits until a transaction whose connection was cut is over.
func (t *transaction) endCut() (quiet bool, err error) {
	quiet = t.gate.SeizeCut(t.store.logger)
	if t.gate.ended.Load() || t.gate.Ending.Load() || t.gate.raw.Load() {
		return quiet, t.plan.spoiled(errLateEnded, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_, _, _ = t.ask(ctx) // it waits for the lock; if that fails, the next request for the key has to retry
	return quiet, unavailable(sqltx.ErrLate)
}
