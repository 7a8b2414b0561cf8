package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// gate stands between a handler and its transaction. It refuses what would end the transaction, and is closed when the
// handler has returned: what is left of the handler, such as a goroutine or rows that were not closed, cannot touch
// what follows. What ends the transaction behind its back, such as a procedure that commits, is noticed when the
// transaction is ended: see [transaction.savepoint].
type gate struct {
	t *transaction

	// over is set before the gate is closed, so that no call gets in between; late, if the handler has not returned by
	// then.
	over   atomic.Bool
	late   atomic.Bool
	mu     sync.Mutex
	closed bool
	// open results are closed with the gate, because they keep the connection busy. Each has what ends it early.
	results map[sqldriver.Rows]context.CancelFunc
	// call ends the last call early. The driver takes no other way to end one that is under way: to close the connection
	// would write to it beside that.
	call  atomic.Pointer[context.CancelFunc]
	sqlTx *sql.Tx
	ctx   handlerContext

	// messages are those that the handler added to its answer.
	messages   []addition
	answerSize outbox.AnswerSize

	// conflict is the first error by which a statement failed because of the neighbours, with that statement; the last
	// one is statement, and callCtx its context. gone says that the server undid the whole transaction with it, gaveUp
	// that the connection was lost with a statement because its context ended.
	conflict  error
	statement string
	callCtx   context.Context
	gone      bool
	gaveUp    error
	// busy says that the work waits for the connection.
	busy atomic.Bool
	// ending says that a statement of the handler may have ended the transaction: where that cannot be seen by the
	// savepoint any more, it is not known what became of the work.
	ending atomic.Bool
}

var (
	errOver = fmt.Errorf("%w: the handler has returned, and its transaction is over", store.ErrTxOwned)
	// errGone is what a handler sees that goes on after the server has undone its transaction.
	errGone = errors.New("mysql: the server undid the transaction, because of another one: return, to be run again")
)

// enter is held while the handler uses the connection.
func (g *gate) enter() error {
	g.mu.Lock()
	if g.over.Load() {
		g.mu.Unlock()
		if g.late.Load() {
			return errLate
		}
		return errOver
	}
	return nil
}

func (g *gate) leave() { g.mu.Unlock() }

// run lets the handler use the connection for a statement.
func (g *gate) run(ctx context.Context, text string, call func(ctx context.Context, raw rawConn) error) error {
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	switch {
	case g.gone:
		return errGone
	case ends(text):
		return fmt.Errorf("%w: %.40q would end it", store.ErrTxOwned, text)
	case g.t.link.joins && several(text):
		return errSeveral
	}
	if mayEnd(text) {
		g.ending.Store(true)
	}
	g.statement, g.callCtx = text, ctx
	g.busy.Store(true)
	defer g.busy.Store(false)
	ctx, cancel := sqltx.WhileBusy(ctx, &g.busy)
	g.call.Store(&cancel)
	rows := len(g.results)
	err := call(ctx, g.t.link.raw)
	if len(g.results) == rows {
		cancel() // what has no rows is over
	}
	if !errors.Is(err, sqldriver.ErrSkip) {
		g.note(err)
	}
	return err
}

// query is run for a statement that returns rows, which end with the gate.
func (g *gate) query(
	ctx context.Context, text string, call func(ctx context.Context, raw rawConn) (sqldriver.Rows, error),
) (rows sqldriver.Rows, err error) {
	err = g.run(ctx, text, func(ctx context.Context, raw rawConn) error {
		inner, err := call(ctx, raw)
		if err != nil {
			return err
		}
		if g.results == nil {
			g.results = make(map[sqldriver.Rows]context.CancelFunc)
		}
		g.results[inner] = *g.call.Load()
		rows = &bridgeRows{inner: inner, gate: g, columns: inner.Columns()}
		return nil
	})
	return rows, err
}

// note looks at how a statement ended. The caller holds the gate.
func (g *gate) note(err error) {
	if undone(err) || mysqlNumber(err) == errorLockWait && !strings.Contains(strings.ToUpper(g.statement), "NOWAIT") {
		g.meet(err)
	}
	g.gone = g.gone || undone(err)
	if err != nil && g.gaveUp == nil && g.callCtx != nil && g.callCtx.Err() != nil && g.t.link.lost() {
		g.gaveUp = sqltx.GaveUp(g.callCtx, g.statement)
	}
}

// meet notes an error that comes from the neighbours: whatever the handler makes of it, all is undone and run again.
func (g *gate) meet(err error) {
	if g.conflict == nil {
		g.conflict = fmt.Errorf("%w, at the statement %.200q", err, g.statement)
	}
}

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
		g.t.store.logger.Warn("onceward: a handler left rows open; they are closed, and its transaction ends as it said",
			"last_statement", g.statement)
	}
	for rows, cancel := range g.results {
		_ = rows.Close() // the error is that of the connection, which is looked at
		cancel()
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
// connection: no call is under way, and no result is open.
func (g *gate) seize() bool {
	if !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if len(g.results) > 0 {
		return false
	}
	g.shut()
	return true
}

// interrupt ends the call that is under way, or the rows that are open, with the connection.
func (g *gate) interrupt() {
	if cancel := g.call.Load(); cancel != nil {
		(*cancel)()
	}
	if g.mu.TryLock() {
		defer g.mu.Unlock()
		for _, cancel := range g.results {
			cancel()
		}
	}
}

// seizeWithin closes the gate when the call that is under way has noticed that its connection was cut.
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

// context carries the transaction to the handler.
func (g *gate) context(ctx context.Context) context.Context {
	g.ctx.Context, g.ctx.gate = ctx, g
	return &g.ctx
}

type gateKey struct{}

// handlerContext carries a transaction to a handler. The *sql.Tx of the transaction is made when it is asked for.
type handlerContext struct {
	context.Context
	gate *gate

	once   sync.Once
	values context.Context
}

// Value implements [context.Context].
func (c *handlerContext) Value(key any) any {
	if key == (gateKey{}) {
		return c.gate
	}
	c.once.Do(func() { c.values = store.ContextWithTxFunc(c.Context, c.gate.sql) })
	return c.values.Value(key)
}

// errSeveral is what a handler gets whose text holds more than one statement. The store's connections would take it,
// and what was put into a text would be run.
var errSeveral = errors.New("mysql: a text holds several statements: run one at a time")

// enders are the words by which statements begin that end a transaction, also those by which the server commits what
// came before them.
var enders = []string{
	"COMMIT", "BEGIN", "START", "XA", "LOCK", "UNLOCK", "ALTER", "ANALYZE", "CACHE", "CHANGE", "CHECK", "FLUSH", "GRANT",
	"INSTALL", "OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "SHUTDOWN", "STOP", "TRUNCATE", "UNINSTALL", "IMPORT",
}

// ends reports whether a statement would end a transaction, as far as its first words tell.
func ends(text string) bool {
	words := firstWords(text)
	switch words[0] {
	case "ROLLBACK":
		return !slices.Contains(words[1:], "TO")
	case "CREATE", "DROP":
		return !slices.Contains(words[1:], "TEMPORARY")
	case "SET":
		return strings.Contains(strings.ToUpper(text), "AUTOCOMMIT")
	default:
		return slices.Contains(enders, words[0])
	}
}

// plain are the words by which statements begin that cannot end a transaction.
var plain = []string{
	"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK", "SHOW", "EXPLAIN",
	"DESCRIBE", "DESC", "DO", "SET", "VALUES", "CREATE", "DROP", "USE", "SIGNAL",
}

// mayEnd reports whether a statement that is let through may end a transaction all the same.
func mayEnd(text string) bool { return !slices.Contains(plain, firstWords(text)[0]) }

// firstWords are the first four words of a statement in upper case, behind its comments. A comment that the server runs
// is none.
func firstWords(text string) (words [4]string) {
	for i := range words {
		text = behindComments(text)
		end := strings.IndexFunc(text, func(r rune) bool { return !isLetter(r) })
		if end < 0 {
			end = len(text)
		}
		words[i] = strings.ToUpper(text[:end])
		text = text[end:]
	}
	return words
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' }

// behindComments is a text without the space and the comments that it begins with.
func behindComments(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f\v;(")
		switch {
		case strings.HasPrefix(text, "/*!"), strings.HasPrefix(text, "/*M!"):
			_, text, _ = strings.Cut(text, "!")
			text = strings.TrimLeft(text, "0123456789")
		case strings.HasPrefix(text, "/*"):
			_, text, _ = strings.Cut(text, "*/")
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "#"):
			_, text, _ = strings.Cut(text, "\n")
		default:
			return text
		}
	}
}

// several reports whether a text holds more than one statement: whether a semicolon that is neither quoted nor in a
// comment has anything but space and comments behind it. What it cannot tell it takes for several.
func several(text string) bool {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ';':
			return behindComments(text[i:]) != ""
		case c == '\'' || c == '"' || c == '`':
			end := quotedEnd(text[i:])
			if end < 0 {
				return strings.Contains(text[i:], ";")
			}
			i += end
		case c == '#', strings.HasPrefix(text[i:], "-- "), strings.HasPrefix(text[i:], "--\n"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return false
			}
			i += end
		case strings.HasPrefix(text[i:], "/*") && !strings.HasPrefix(text[i:], "/*!") && !strings.HasPrefix(text[i:], "/*M!"):
			end := strings.Index(text[i:], "*/")
			if end < 0 {
				return strings.Contains(text[i:], ";")
			}
			i += end + len("*/")
		default:
			i++
		}
	}
	return false
}

// quotedEnd is where a quoted text ends, whether or not a backslash escapes: if the two differ, it is not known, which
// is -1.
func quotedEnd(text string) int {
	quote, escaped, plain := text[0], -1, -1
	for i := 1; i < len(text) && escaped < 0; i++ {
		switch text[i] {
		case '\\':
			if quote != '`' {
				i++
			}
		case quote:
			escaped = i + 1
		}
	}
	if i := strings.IndexByte(text[1:], quote); i >= 0 {
		plain = i + 2
	}
	if escaped != plain {
		return -1
	}
	return escaped
}
