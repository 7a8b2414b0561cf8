package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// gate stands between a handler and its transaction. It refuses statements that would
// end the transaction. If something else ends the transaction, such as a procedure
// that commits, the store notices this when it ends the transaction: see setSavepoint.
type gate struct {
	sqltx.Gate
	t *transaction

	// call cancels the last call. The driver has no other way to end a running
	// call: closing the connection would write to it at the same time.
	call atomic.Pointer[context.CancelFunc]
	ctx  sqltx.Context

	// messages are the messages that the handler added to its answer.
	messages   []addition
	answerSize outbox.AnswerSize

	// gone means that the server undid the whole transaction when a statement failed.
	gone bool
}

// errGone is returned to a handler that continues after the server has undone its transaction.
var errGone = errors.New("mysql: the server undid the transaction, because of another one: return, to be run again")

// run lets the handler use the connection for a statement.
func (g *gate) run(ctx context.Context, text string, call func(ctx context.Context, raw rawConn) error) error {
	if err := g.Enter(); err != nil {
		return err
	}
	defer g.Leave()
	switch {
	case g.gone:
		return errGone
	case ends(text):
		return fmt.Errorf("%w: %.40q would end it", store.ErrTxOwned, text)
	case g.t.link.joins && several(text):
		return errSeveral
	}
	if mayEnd(text) {
		g.Ending.Store(true)
	}
	g.Statement, g.CallCtx = text, ctx
	g.Busy.Store(true)
	defer g.Busy.Store(false)
	ctx, cancel := sqltx.WhileBusy(ctx, &g.Busy)
	g.call.Store(&cancel)
	rows := len(g.Open())
	err := call(ctx, g.t.link.raw)
	if len(g.Open()) == rows {
		cancel() // without rows the call is over
	}
	if !errors.Is(err, sqldriver.ErrSkip) {
		g.note(err)
	}
	return err
}

// query is run for a statement that returns rows. The rows end with the gate.
func (g *gate) query(
	ctx context.Context, text string, call func(ctx context.Context, raw rawConn) (sqldriver.Rows, error),
) (rows sqldriver.Rows, err error) {
	err = g.run(ctx, text, func(ctx context.Context, raw rawConn) error {
		inner, err := call(ctx, raw)
		if err != nil {
			return err
		}
		open := &bridgeRows{ColumnTypes: sqltx.NewColumnTypes(inner, g), inner: inner, gate: g, cancel: *g.call.Load()}
		g.Keep(openRows{open})
		rows = open
		return nil
	})
	return rows, err
}

// note records how a statement ended. The caller holds the gate.
func (g *gate) note(err error) {
	if undone(err) || mysqlNumber(err) == errorLockWait && !strings.Contains(strings.ToUpper(g.Statement), "NOWAIT") {
		g.Meet(err)
	}
	g.gone = g.gone || undone(err)
	if g.t.link.lost() {
		g.Lost(err)
	}
}

// interrupt ends the running call, or the open rows, together with the connection.
func (g *gate) interrupt() {
	if cancel := g.call.Load(); cancel != nil {
		(*cancel)()
	}
	g.Try(func() {
		for rows := range g.Open() {
			rows.(openRows).cancel()
		}
	})
}

type gateKey struct{}

// errSeveral is returned for a text that holds more than one statement. The store's connections would accept such a
// text, and SQL that was injected into it would run.
var errSeveral = errors.New("mysql: a text holds several statements: run one at a time")

// enders are the first words of statements that end a transaction,
// including statements before which the server commits.
var enders = []string{
	"COMMIT", "BEGIN", "START", "XA", "LOCK", "UNLOCK", "ALTER", "ANALYZE", "CACHE", "CHANGE", "CHECK", "FLUSH", "GRANT",
	"INSTALL", "OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "SHUTDOWN", "STOP", "TRUNCATE", "UNINSTALL", "IMPORT",
}

// ends reports whether a statement would end a transaction, as far as its first words show.
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

// plain are the first words of statements that cannot end a transaction.
var plain = []string{
	"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK", "SHOW", "EXPLAIN",
	"DESCRIBE", "DESC", "DO", "SET", "VALUES", "CREATE", "DROP", "USE", "SIGNAL",
}

// mayEnd reports whether a statement that is not refused may end a transaction anyway.
func mayEnd(text string) bool { return !slices.Contains(plain, firstWords(text)[0]) }

// firstWords returns the first four words of a statement in upper case, without the comments before them. A comment
// that the server runs counts as a statement.
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

// behindComments returns a text without the space, semicolons, parentheses and comments that it begins with.
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

// several reports whether a text holds more than one statement: whether a semicolon
// outside of quotes and comments is followed by anything but space and comments. A
// text that it cannot parse counts as several statements if it has a semicolon.
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

// quotedEnd returns where a quoted text ends. If the end depends on whether
// a backslash escapes, the end is not known, and quotedEnd returns -1.
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
