package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// exec runs a statement of a handler. The caller holds the gate.
func (g *gate) exec(ctx context.Context, conn *pgx.Conn, sql string, args []any) (pgconn.CommandTag, error) {
	g.inspect(ctx, sql)
	tag, err := rowless(conn).exec(ctx, conn, sql, args)
	g.note(tag, err)
	return tag, err
}

// rowlessStatements are the statements of a connection that return no rows, such as most of what handlers execute. pgx
// asks the server each time what they return, because it takes a statement without columns for one whose columns are
// not known. They are those that pgx has prepared: it keeps them, and forgets them when they have failed. What is not
// known here is left to pgx.
type rowlessStatements struct {
	known map[string]rowlessStatement // by text
	most  int                         // that pgx keeps; zero if it keeps none, or tells a tracer of each
	query pgx.ExtendedQueryBuilder
}

// rowlessStatement is a statement as pgx has prepared it, and as pgx is told of it: with a column that it does not have,
// so that pgx does not ask. That is nil for one that is left to pgx.
type rowlessStatement struct {
	name           string // that pgx knows it by
	prepared, told *pgconn.StatementDescription
}

// rowlessKey is where a connection keeps its statements.
const rowlessKey = "onceward: statements that return no rows"

// rowless returns the statements of a connection.
func rowless(conn *pgx.Conn) *rowlessStatements {
	data := conn.PgConn().CustomData()
	if s, ok := data[rowlessKey].(*rowlessStatements); ok {
		return s
	}
	s := &rowlessStatements{known: make(map[string]rowlessStatement)}
	config := conn.Config()
	if config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && config.Tracer == nil {
		s.most = config.StatementCacheCapacity
	}
	data[rowlessKey] = s
	return s
}

// execer is what the connections of pgx are since v5.9.0, which do not ask what a prepared statement returns. Since
// v5.11.0 they do ask if its description has no columns.
type execer interface {
	ExecStatement(
		ctx context.Context, statement *pgconn.StatementDescription, values [][]byte, formats, resultFormats []int16,
	) *pgconn.ResultReader
}

// exec runs a statement.
func (s *rowlessStatements) exec(
	ctx context.Context, conn *pgx.Conn, sql string, args []any,
) (tag pgconn.CommandTag, err error) {
	pg, able := any(conn.PgConn()).(execer)
	if !able || s.most <= 0 || !plain(args) {
		return conn.Exec(ctx, sql, args...)
	}
	statement, seen := s.known[sql]
	switch {
	case seen && statement.told == nil:
		return conn.Exec(ctx, sql, args...)
	case !seen, statement.prepared != prepared(conn, statement.name, sql):
		if tag, err = conn.Exec(ctx, sql, args...); err == nil {
			s.learn(conn, sql)
		}
		return tag, err
	}
	defer s.letGo(conn)
	if s.query.Build(conn.TypeMap(), statement.prepared, args) != nil { // pgx says what is wrong with the arguments
		delete(s.known, sql)
		return conn.Exec(ctx, sql, args...)
	}
	tag, err = pg.ExecStatement(ctx, statement.told, s.query.ParamValues, s.query.ParamFormats, nil).Close()
	if err != nil {
		s.forget(conn, sql, args)
	}
	return tag, err
}

// letGo lets go of the arguments, which may be large and would otherwise be kept as long as the connection.
func (s *rowlessStatements) letGo(conn *pgx.Conn) {
	clear(s.query.ParamValues)
	_ = s.query.Build(conn.TypeMap(), noParameters, nil)
}

// noParameters is a statement without parameters.
var noParameters = new(pgconn.StatementDescription)

// plain reports whether arguments are values alone: in front of them pgx takes a mode, or what rewrites the statement.
func plain(args []any) bool {
	if len(args) == 0 {
		return false // pgx prepares nothing then
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryRewriter:
		return false
	default:
		return true
	}
}

// learn finds out whether pgx has prepared the statement, under the name that it makes of a text, or under the text
// itself for database/sql, and whether it returns rows.
func (s *rowlessStatements) learn(conn *pgx.Conn, sql string) {
	if len(s.known) >= s.most {
		clear(s.known)
	}
	digest := sha256.Sum256([]byte(sql))
	var statement rowlessStatement
	for _, statement.name = range [...]string{"stmtcache_" + hex.EncodeToString(digest[:24]), sql} {
		if statement.prepared = prepared(conn, statement.name, sql); statement.prepared != nil {
			break
		}
	}
	if statement.prepared != nil && len(statement.prepared.Fields) == 0 {
		told := *statement.prepared
		told.Fields = make([]pgconn.FieldDescription, 1)
		statement.told = &told
	}
	s.known[sql] = statement
}

// forget makes pgx forget a statement that failed, as it does after errors of its own: a later transaction prepares it
// again.
func (s *rowlessStatements) forget(conn *pgx.Conn, sql string, args []any) {
	delete(s.known, sql)
	if !conn.IsClosed() {
		_, _ = conn.Exec(over, sql, args...) // it fails before anything is sent
	}
}

// prepared returns a statement that pgx has prepared under a name, or nil. Nothing is sent for that.
func prepared(conn *pgx.Conn, name, sql string) *pgconn.StatementDescription {
	statement, err := conn.Prepare(over, name, sql)
	if err != nil {
		return nil
	}
	return statement
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
