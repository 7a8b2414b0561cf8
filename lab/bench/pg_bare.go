package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// The ways that show how much there is to gain: the statements that protection cannot do without, on the store's own
// tables, over the raw protocol and with nothing around them. They decide nothing, check nothing and survive nothing.
const (
	pgBare         = "bare statements: transactional, one insert"
	pgBare3        = "bare statements: transactional, three statements"
	pgBareReserved = "bare statements: reserve, one insert, complete"
	pgHTTPBare     = "HTTP, bare statements: transactional, one insert"
	outboxBare     = "three statements and a row in a table with one index"
	outboxNothing  = "three statements and one that does nothing"
)

// bareStatements are what the store sends, less what only serves to be sure.
var bareStatements = map[string]string{
	"bare_begin":  `BEGIN`,
	"bare_lock":   `SELECT pg_try_advisory_xact_lock($1)`,
	"bare_look":   `SELECT * FROM onceward_record WHERE id = $1`,
	"bare_commit": `COMMIT`,
	"bare_store": `INSERT INTO onceward_record (id, attempt, due, retention, state, version, status, body, fingerprint, operation, scope, key_uuid)
		VALUES ($1, nextval('onceward_attempt'), onceward_now() + 86400000000, 86400000000, 20, 1, 201, $2, $3, 'POST /payments', 'alice',
			$4) RETURNING attempt, due`,
	"bare_reserve": `INSERT INTO onceward_record (id, attempt, due, retention, state, version, nonce, fingerprint, operation, scope, key_uuid)
		SELECT u.id, nextval('onceward_attempt'), onceward_now() + 30000000, 86400000000, 10, 1, $2, $3, 'POST /payments', 'alice', $4
		FROM unnest($1::uuid[]) AS u (id)
		ON CONFLICT (id) DO NOTHING RETURNING id, attempt`,
	"bare_complete": `UPDATE onceward_record r SET state = 20, status = 201, body = $2, due = onceward_now() + 86400000000
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

// trip sends what was added, and returns how many rows came back. It waits for no context, which would cost a
// goroutine for each message.
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
	body, fingerprint, key []byte
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
	row := s.pool.QueryRow(ctx, `SELECT body, fingerprint, uuid_send(key_uuid) FROM onceward_record WHERE state = 20 LIMIT 1`)
	return site, row.Scan(&site.body, &site.fingerprint, &site.key)
}

// borrow takes a connection of the pool that knows the statements.
func (s *bareSite) borrow(ctx context.Context) (conn bareConn, giveBack func(), err error) {
	acquired, err := s.pool.Acquire(ctx)
	if err != nil {
		return conn, nil, err
	}
	if conn, err = bare(ctx, acquired.Conn()); err != nil {
		acquired.Release()
		return conn, nil, err
	}
	return conn, acquired.Release, nil
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
	conn.add("bare_store", id, s.body, s.fingerprint, s.key)
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
func (b *pgBusiness) openBareTransactional(ctx context.Context, s *pgSite) (*arena, error) {
	site, err := openBareSite(ctx, s, b)
	if err != nil {
		return nil, err
	}
	return &arena{
		operate: func(ctx context.Context) error { return site.within(ctx, b.work) },
		check:   func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
	}, nil
}

// openHTTPBare is the handler of a payment with the bare statements around it, and no guard.
func openHTTPBare(ctx context.Context, s *pgSite) (*arena, error) {
	site, err := openBareSite(ctx, s, &oneRow)
	if err != nil {
		return nil, err
	}
	handler := payment(site.within)
	check := func(ctx context.Context, done int64) error { return oneRow.checkRecords(ctx, s, done) }
	return serve(handler, s.callers, check, nil)
}

// bareLanes is the store's.
const bareLanes = 2

// bareBatches gathers what arrives while a statement is on the wire, as the store does.
type bareBatches struct {
	site *bareSite

	mu    sync.Mutex
	queue []*bareItem
	busy  int
}

// bareItem is a key to reserve or to complete.
type bareItem struct {
	statement string
	id        []byte
	done      chan error
}

// do hands an item in and waits for it.
func (b *bareBatches) do(ctx context.Context, statement string, id []byte) error {
	t := &bareItem{statement: statement, id: id, done: make(chan error, 1)}
	b.mu.Lock()
	b.queue = append(b.queue, t)
	lead := b.busy < bareLanes
	if lead {
		b.busy++
	}
	b.mu.Unlock()
	if lead {
		go b.run(context.WithoutCancel(ctx))
	}
	return <-t.done
}

// run sends batches until nothing is left.
func (b *bareBatches) run(ctx context.Context) {
	for {
		b.mu.Lock()
		items := b.queue
		b.queue = nil
		if len(items) == 0 {
			b.busy--
		}
		b.mu.Unlock()
		if len(items) == 0 {
			return
		}
		err := b.send(ctx, items)
		for _, t := range items {
			t.done <- err
		}
	}
}

func (b *bareBatches) send(ctx context.Context, items []*bareItem) error {
	conn, giveBack, err := b.site.borrow(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	reserved, completed := arrayOfIDs(items, "bare_reserve"), arrayOfIDs(items, "bare_complete")
	if reserved != nil {
		conn.add("bare_reserve", reserved, b.site.body[:16], b.site.fingerprint, b.site.key)
	}
	if completed != nil {
		conn.add("bare_complete", completed, b.site.body)
	}
	rows, err := conn.trip()
	if err == nil && rows != len(items) {
		err = fmt.Errorf("%d of %d items were written", rows, len(items))
	}
	return err
}

// arrayOfIDs encodes the names of the items of one statement, or returns nil if there are none.
func arrayOfIDs(items []*bareItem, statement string) []byte {
	const uuid = 2950
	var elements []byte
	count := uint32(0)
	for _, t := range items {
		if t.statement == statement {
			elements = append(binary.BigEndian.AppendUint32(elements, uint32(len(t.id))), t.id...)
			count++
		}
	}
	if count == 0 {
		return nil
	}
	var array []byte
	for _, header := range [...]uint32{1, 0, uuid, count, 1} { // one dimension, no nulls, from one on
		array = binary.BigEndian.AppendUint32(array, header)
	}
	return append(array, elements...)
}

// openBareReserved is the business between a bare reservation and a bare answer.
func (b *pgBusiness) openBareReserved(ctx context.Context, s *pgSite) (*arena, error) {
	site, err := openBareSite(ctx, s, b)
	if err != nil {
		return nil, err
	}
	batches := &bareBatches{site: site}
	operate := func(ctx context.Context) error {
		id := bareID()
		if err := batches.do(ctx, "bare_reserve", id); err != nil {
			return err
		}
		if err := b.plainly(ctx, s); err != nil {
			return err
		}
		return batches.do(ctx, "bare_complete", id)
	}
	return &arena{
		operate: operate,
		check:   func(ctx context.Context, done int64) error { return b.checkRecords(ctx, s, done) },
	}, nil
}

// openOutboxBare is a business with a row more, in a table that has one index and that nothing reads.
func (b *pgBusiness) openOutboxBare(ctx context.Context, s *pgSite) (*arena, error) {
	a, err := b.openWithOneMore(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO message (id, aggregate, payload) VALUES ($1, $2, $3)`,
			bareID(), businessMessage().AggregateID, []byte(outboxPayload))
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = s.pool.Exec(ctx,
		`CREATE TABLE message (id uuid PRIMARY KEY, aggregate text NOT NULL, payload bytea NOT NULL)`)
	check := a.check
	a.check = func(ctx context.Context, done int64) error {
		return errors.Join(check(ctx, done), s.expect(ctx, done, `SELECT count(*) FROM message`))
	}
	return a, err
}

// openOutboxNothing is a business with a statement more, which does nothing.
func (b *pgBusiness) openOutboxNothing(ctx context.Context, s *pgSite) (*arena, error) {
	return b.openWithOneMore(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT $1::integer`, 1)
		return err
	})
}

// openWithOneMore is a business with a statement more at its end.
func (b *pgBusiness) openWithOneMore(
	ctx context.Context, s *pgSite, more func(ctx context.Context, tx pgx.Tx) error,
) (*arena, error) {
	return &arena{
		operate: func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				if err := b.work(ctx, tx); err != nil {
					return err
				}
				return more(ctx, tx)
			})
		},
		check: func(ctx context.Context, done int64) error { return b.check(ctx, s, done) },
	}, b.create(ctx, s)
}
