package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// The ways that show how much there is to gain: the statements that protection cannot do without, on the store's own tables,
// over the raw protocol and with nothing around them. They decide nothing, check nothing and survive nothing.
const (
	pgBare         = "bare statements: transactional, one insert"
	pgBare3        = "bare statements: transactional, three statements"
	pgBareReserved = "bare statements: reserve, one insert, complete"
	pgHTTPBare     = "HTTP, bare statements: transactional, one insert"
	outboxBare     = "three statements and a row in a table with one index"
	outboxNothing  = "three statements and one that does nothing"
)

// bareFigures are the ceilings of figures that have a goal. They have none themselves.
var bareFigures = []pgFigure{
	{"postgres-transactional-c16-bare", 16, pgBare, pgPlain},
	{"postgres-transactional3-c16-bare", 16, pgBare3, pgPlain3},
	{"postgres-reserved-c16-bare", 16, pgBareReserved, pgPlain},
	{"postgres-http-c16-bare", 16, pgHTTPBare, pgHTTPPlain},
	{"postgres-http-c64-bare", 64, pgHTTPBare, pgHTTPPlain},
}

// measureBare compares the bare statements with the business alone.
func (s *pgServer) measureBare(ctx context.Context, o *options, r *report) error {
	_, err := s.compare(ctx, o, r, bareFigures, durably)
	return err
}

// bareStatements are what the store sends, less what only serves to be sure.
var bareStatements = map[string]string{
	"bare_begin":  `BEGIN`,
	"bare_lock":   `SELECT pg_try_advisory_xact_lock($1)`,
	"bare_look":   `SELECT attempt, due, retention, answer, state, request, extra FROM onceward_record WHERE id = $1`,
	"bare_commit": `COMMIT`,
	"bare_store": `INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
		VALUES ($1, nextval('onceward_attempt'), onceward_now() + 86400000000, 86400, $2, 20, $3, '') RETURNING attempt, due`,
	"bare_reserve": `INSERT INTO onceward_record (id, attempt, due, retention, answer, state, request, extra)
		SELECT u.id, nextval('onceward_attempt'), onceward_now() + 30000000, 86400, $2, 10, $3, '' FROM unnest($1::uuid[]) AS u (id)
		ON CONFLICT (id) DO NOTHING RETURNING id, attempt`,
	"bare_complete": `UPDATE onceward_record r SET state = 20, answer = $2, due = onceward_now() + 86400000000
		FROM unnest($1::uuid[]) AS u (id) WHERE r.id = u.id AND r.state = 10 RETURNING r.id`,
}

// bareConn speaks the protocol itself.
type bareConn struct{ *pgx.Conn }

// bareKnown marks the connections that know the statements.
const bareKnown = "the bare statements"

// bare makes the statements known to a connection, once.
func bare(ctx context.Context, conn *pgx.Conn) (bareConn, error) {
	data := conn.PgConn().CustomData()
	if data[bareKnown] != nil {
		return bareConn{conn}, nil
	}
	for name, text := range bareStatements {
		if _, err := conn.Prepare(ctx, name, text); err != nil {
			return bareConn{}, err
		}
	}
	data[bareKnown] = true
	return bareConn{conn}, nil
}

var bareFormat = []int16{1}

// add puts a statement into the round trip.
func (c bareConn) add(name string, parameters ...[]byte) {
	frontend := c.PgConn().Frontend()
	frontend.SendBind(&pgproto3.Bind{
		PreparedStatement: name, ParameterFormatCodes: bareFormat, Parameters: parameters, ResultFormatCodes: bareFormat,
	})
	frontend.SendExecute(&pgproto3.Execute{})
}

// trip sends what was added, and returns how many rows came back. It waits for nobody's context, which would cost a goroutine for
// each message.
func (c bareConn) trip() (rows int, err error) {
	frontend := c.PgConn().Frontend()
	frontend.SendSync(&pgproto3.Sync{})
	if err := frontend.Flush(); err != nil {
		return 0, err
	}
	for {
		message, lost := c.PgConn().ReceiveMessage(context.Background())
		if lost != nil {
			return rows, lost
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			rows++
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return rows, err
		}
	}
}

// bareTx is as much of a transaction as the business needs.
type bareTx struct {
	pgx.Tx
	conn bareConn
}

func (t bareTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.conn.Exec(ctx, sql, args...)
}

// bareSite is a site with the store's tables, and what a record of them looks like.
type bareSite struct {
	*pgSite
	answer, request []byte
}

// openBareSite makes the tables of the store and of the business, with as many records as for the store itself.
func openBareSite(ctx context.Context, s *pgSite, b *pgBusiness) (*bareSite, error) {
	store, err := openStore(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.create(ctx, s), fillRecords(ctx, s, store), store.Close()); err != nil {
		return nil, err
	}
	site := &bareSite{pgSite: s}
	row := s.pool.QueryRow(ctx, `SELECT answer, request FROM onceward_record WHERE state = 20 LIMIT 1`)
	return site, row.Scan(&site.answer, &site.request)
}

// borrow takes a connection of the pool that knows the statements.
func (s *bareSite) borrow(ctx context.Context) (conn bareConn, giveBack func(), err error) {
	lent, err := s.pool.Acquire(ctx)
	if err != nil {
		return conn, nil, err
	}
	if conn, err = bare(ctx, lent.Conn()); err != nil {
		lent.Release()
		return conn, nil, err
	}
	return conn, lent.Release, nil
}

// within does work between the claim and the answer of a new key.
func (s *bareSite) within(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	conn, giveBack, err := s.borrow(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	id := bareID()
	conn.add("bare_begin")
	conn.add("bare_lock", binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(id)))
	conn.add("bare_look", id)
	if _, err := conn.trip(); err != nil {
		return err
	}
	if err := work(ctx, bareTx{conn: conn}); err != nil {
		return err
	}
	conn.add("bare_store", id, s.answer, s.request)
	conn.add("bare_commit")
	_, err = conn.trip()
	return err
}

// bareID is the name of a new record.
func bareID() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	return id
}

// openBareTransactional is the bare claim, the business and the bare answer.
func (b *pgBusiness) openBareTransactional(ctx context.Context, s *pgSite) (*pgArena, error) {
	site, err := openBareSite(ctx, s, b)
	if err != nil {
		return nil, err
	}
	return &pgArena{
		operate: func(ctx context.Context) error { return site.within(ctx, b.work) },
		check:   func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
		filled:  rowsBefore,
	}, nil
}

// openHTTPBare is the handler of a payment with the bare statements around it, and no guard.
func openHTTPBare(ctx context.Context, s *pgSite) (*pgArena, error) {
	site, err := openBareSite(ctx, s, &oneRow)
	if err != nil {
		return nil, err
	}
	handler := payment(site.within)
	check := func(ctx context.Context, done int64) error { return oneRow.checkRecords(ctx, s, done) }
	return serve(handler, s.callers, check, nil)
}
