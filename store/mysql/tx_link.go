package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/internal/redial"
	"github.com/onceward/onceward/internal/sqltx"
)

// transactions holds the store's state for the transactions that it runs.
type transactions struct {
	bridge *sqltx.Bridge
	// slots leave free a part of a pool that the application uses too.
	slots *sqltx.Slots
	// joins means that the connections of handlers accept several statements in one text.
	joins bool
	// level is the isolation level of the connections of handlers, in the server's spelling.
	level string
	// unique holds the keys of tables that are known to be unique.
	unique sync.Map
	// messages wakes the workers that wait for messages.
	messages sqltx.Hints
	// flights are the operations whose transactions run in this process.
	flights sqltx.Flights
}

// openHandlers opens the pool for handlers, whose connections have the settings of the URL.
func (s *Store) openHandlers() error {
	connector, err := newConnector(s.location, s.tuneHandlers, keepLockWait, setHandlers)
	if err == nil {
		s.handlers, s.opened = openPool(connector, &s.options), true
		s.handlers.SetConnMaxIdleTime(handlersIdle / 2)
	}
	return err
}

// tuneHandlers sets how connections for handlers are made. Values are put into the statements, and several statements
// into one text, so that a transaction takes few round trips. The other settings are taken from the URL.
func (s *Store) tuneHandlers(config *driver.Config) {
	config.InterpolateParams = true
	config.MultiStatements = true
	config.CheckConnLiveness = true
	config.MaxAllowedPacket = 0
	config.Logger = driverLog{s.logger}
}

// selectLevel reads the isolation level of a session and whether it is read-only, by both names of each variable.
// selectLimit reads the limit that would cut off results, and selectClock reads the time.
const (
	selectLevel = `SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation',
		'transaction_read_only', 'tx_read_only')`
	selectLimit = `SHOW VARIABLES LIKE 'sql_select_limit'`
	noLimit     = "18446744073709551615"
	selectClock = `SELECT 'clock', CONCAT(` + serverClock + `)`
)

// checkHandle returns an error if the sessions of handlers have settings that
// the store cannot work with. It returns the variables that selectLevel reads.
func checkHandle(ctx context.Context, conn sqldriver.Conn) (map[string]string, error) {
	limit, err := queryPairs(ctx, conn, selectLimit)
	if err != nil {
		return nil, err
	}
	if got := limit["sql_select_limit"]; got != noLimit {
		return nil, fmt.Errorf("the sessions of the handle have sql_select_limit = %s, which cuts off what the store reads", got)
	}
	first, err := queryPairs(ctx, conn, selectClock)
	if err != nil {
		return nil, err
	}
	second, err := queryPairs(ctx, conn, selectClock)
	if err != nil {
		return nil, err
	}
	if first["clock"] == second["clock"] {
		return nil, errors.New("the sessions of the handle have a timestamp that is set, which stops their clock")
	}
	variables, err := queryPairs(ctx, conn, selectLevel)
	if isOn(variables["transaction_read_only"]) || isOn(variables["tx_read_only"]) {
		return nil, errors.New("the sessions of the handle have tx_read_only = 1, which refuses all writes")
	}
	return variables, err
}

// openTransactions finds out what the connections of handlers support.
func (s *Store) openTransactions(ctx context.Context) error {
	s.bridge = sqltx.NewBridge(driver.MySQLDriver{})
	l, err := connect(ctx, &s.handlersGate, s.handlers, true)
	if err != nil {
		return err
	}
	defer l.release()
	variables, err := checkHandle(ctx, l.raw)
	if err != nil {
		return err
	}
	if !s.opened {
		s.slots = sqltx.NewSlots(func() int { return s.handlers.Stats().MaxOpenConnections })
	}
	s.level = cmp.Or(variables["transaction_isolation"], variables["tx_isolation"])
	if s.opened {
		s.joins = true
		return nil
	}
	_, err = l.exec(sqltx.Undisturbed(ctx, settleTimeout), stmt(`DO 1`), stmt(`DO 2`))
	s.joins = err == nil
	if mysqlNumber(err) != 0 {
		return nil // it accepts one statement at a time
	}
	return err
}

// closeTransactions closes what the store has opened for handlers.
func (s *Store) closeTransactions() {
	s.bridge.Close()
	if s.opened {
		_ = s.handlers.Close()
	}
}

// rawConn is a connection of the driver, used without database/sql. Transactions of the store use it, because only the
// driver can send several statements in one round trip and return the result of each.
type rawConn interface {
	sqldriver.Conn
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.NamedValueChecker
	sqldriver.Validator
}

// link is the connection of one transaction. It is taken from its pool for the
// whole transaction, so that database/sql makes no calls on it in between.
type link struct {
	pool *sql.Conn
	raw  rawConn
	// joins means that the server accepts several statements in one text.
	joins bool
	// give returns the transaction's share of the pool. It is nil if the transaction has none.
	give func()
}

// errUnconnected means that there was no connection for a call.
var errUnconnected = errors.New("no connection")

// take takes a connection from a pool.
func take(ctx context.Context, gate *redial.Gate, db *sql.DB) (*sql.Conn, error) {
	conn, err := redial.Do(ctx, gate, func(beside int) bool { return sqltx.Makes(db, beside) }, db.Conn)
	if err != nil {
		pool := db.Stats()
		return nil, fmt.Errorf("%w: %w", errUnconnected, sqltx.Exhausted(ctx, err, pool.InUse, pool.MaxOpenConnections))
	}
	return conn, nil
}

// connect takes a connection from a pool, to send statements on it without database/sql.
func connect(ctx context.Context, gate *redial.Gate, db *sql.DB, joins bool) (*link, error) {
	pool, err := take(ctx, gate, db)
	if err != nil {
		return nil, err
	}
	l := &link{pool: pool, joins: joins}
	err = pool.Raw(func(conn any) error {
		raw, ok := conn.(rawConn)
		if !ok {
			return fmt.Errorf("mysql: a connection is a %T: the store needs those of github.com/go-sql-driver/mysql", conn)
		}
		l.raw = raw
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return l, nil
}

// session returns the server's number of the connection, and the name of
// the server. Both are empty for a connection that the store did not make.
func (l *link) session() (number int64, node string) {
	if own, ok := l.raw.(*session); ok {
		return own.number, own.node
	}
	return 0, ""
}

// lost reports whether the connection is closed.
func (l *link) lost() bool { return !l.raw.IsValid() }

// cut closes the connection even while it is in use. The server undoes what was not committed when it notices.
func (l *link) cut() { _ = l.raw.Close() }

// release returns the connection to its pool, which discards it if it was cut.
func (l *link) release() {
	if l.give != nil {
		defer l.give()
	}
	if l.lost() {
		_ = l.pool.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	_ = l.pool.Close()
}

// statement is a text with its arguments, which are written as numbers and
// hexadecimal bytes alone: such literals have the same meaning in every sql_mode.
type statement struct {
	text string
	args []any
}

// stmt returns a statement.
func stmt(text string, args ...any) statement { return statement{text, args} }

// literal returns the statement with its arguments in their places.
func (s *statement) literal() string { return string(s.appendTo(nil)) }

// appendTo appends the text that literal returns.
func (s *statement) appendTo(b []byte) []byte {
	text := s.text
	for _, arg := range s.args {
		before, after, _ := strings.Cut(text, "?")
		b = append(b, before...)
		text = after
		switch value := arg.(type) {
		case nil:
			b = append(b, "NULL"...)
		case int64:
			b = strconv.AppendInt(b, value, 10)
		case int:
			b = strconv.AppendInt(b, int64(value), 10)
		case []byte:
			if value == nil {
				b = append(b, "NULL"...)
				continue
			}
			b = append(hex.AppendEncode(append(b, "x'"...), value), '\'')
		case string:
			b = append(hex.AppendEncode(append(b, "_utf8mb4 x'"...), []byte(value)), '\'')
		default:
			panic(fmt.Sprintf("mysql: an argument of type %T", arg))
		}
	}
	return append(b, text...)
}

// usualText is the size of the statements of most round trips.
const usualText = 2048

// texts joins statements into as few texts, and so round trips, as the connection allows.
func (l *link) texts(statements []statement) []string {
	if l.joins {
		b := make([]byte, 0, usualText)
		for i := range statements {
			if i > 0 {
				b = append(b, "; "...)
			}
			b = statements[i].appendTo(b)
		}
		return []string{string(b)}
	}
	all := make([]string, len(statements))
	for i := range statements {
		all[i] = statements[i].literal()
	}
	return all
}

// results holds the LAST_INSERT_ID of each statement, and how many rows it wrote.
type results struct{ ids, rows []int64 }

// exec runs statements that return no rows, and stops at the first error. If statements are sent one at a time, an
// error after COMMIT does not undo the commit: exec then cuts the connection, and returns no error.
func (l *link) exec(deadline time.Time, statements ...statement) (all results, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	committed := false
	for _, text := range l.texts(statements) {
		result, err := l.raw.ExecContext(ctx, text, nil)
		if err != nil && committed {
			l.cut()
			return all, nil
		}
		if err != nil {
			return results{}, err
		}
		committed = committed || text == commit.text
		each, ok := result.(driver.Result)
		if !ok {
			return results{}, fmt.Errorf("mysql: a result is a %T: the driver is older than v1.8", result)
		}
		all.ids = append(all.ids, each.AllLastInsertIds()...)
		all.rows = append(all.rows, each.AllRowsAffected()...)
	}
	return all, nil
}

// query runs statements of which some return rows, and stops at the first error. It calls read with each row.
func (l *link) query(deadline time.Time, read func(row []sqldriver.Value) error, statements ...statement) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for _, text := range l.texts(statements) {
		rows, err := l.raw.QueryContext(ctx, text, nil)
		if err != nil {
			return err
		}
		if err := errors.Join(readResults(rows, read), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// readResults reads all rows of all results.
func readResults(rows sqldriver.Rows, read func(row []sqldriver.Value) error) (err error) {
	for {
		row := make([]sqldriver.Value, len(rows.Columns()))
		for err = rows.Next(row); err == nil && len(row) > 0; err = rows.Next(row) {
			if err := read(row); err != nil {
				return err
			}
		}
		if err != io.EOF {
			return err
		}
		sets, ok := rows.(sqldriver.RowsNextResultSet)
		if !ok {
			return nil
		}
		if err := sets.NextResultSet(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// int64Of returns a number, which the driver returns as a number or, in older versions, as text.
func int64Of(value sqldriver.Value) (int64, error) {
	switch v := value.(type) {
	case int64:
		return v, nil
	case uint64:
		return int64(v), nil
	case []byte:
		return strconv.ParseInt(string(v), 10, 64)
	case nil:
		return 0, errors.New("mysql: a number is missing")
	default:
		return 0, fmt.Errorf("mysql: a number came as a %T", value)
	}
}
