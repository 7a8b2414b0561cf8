package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/redial"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// source is the pool of the handlers' connections: a pool of pgx, or a *sql.DB over pgx.
type source interface {
	// acquire takes a connection.
	acquire(ctx context.Context) (acquired, error)
	// poolConfig returns a configuration that connects in the same way.
	poolConfig(ctx context.Context) (*pgxpool.Config, error)
	// makes reports whether a connection would be made for a caller that acquires one now.
	makes(beside int) bool
	// used returns the number of connections in use.
	used() int
	// size returns the largest number of connections, or zero for no limit.
	size() int
}

// acquired is a connection that belongs to a source.
type acquired struct {
	// conn is the connection as database/sql sees it, so that a *sql.Tx can be made of it.
	conn *stdlib.Conn
	// pooled or pooledSQL is the connection as its pool sees it. Both are nil if closing conn returns
	// the connection to its pool.
	pooled    *pgxpool.Conn
	pooledSQL *sql.Conn
	// give gives back the slot of the pool that the transaction has taken.
	give func()
}

// pgx returns the connection as pgx sees it.
func (l *acquired) pgx() *pgx.Conn { return l.conn.Conn() }

// release returns the connection to its pool. A connection that was closed, or is still in a
// transaction, is not used again.
func (l *acquired) release() {
	if l.give != nil {
		defer l.give()
	}
	switch {
	case l.pooled != nil:
		l.pooled.Release() // the pool destroys a connection that is closed, busy or in a transaction
	case l.pooledSQL != nil:
		_ = l.pooledSQL.Raw(func(any) error {
			if l.pgx().IsClosed() || l.pgx().PgConn().TxStatus() != statusIdle {
				return driver.ErrBadConn // database/sql closes it then
			}
			return nil
		})
		_ = l.pooledSQL.Close()
	default:
		_ = l.conn.Close() // Close releases the connection
	}
}

// discard closes the connection, and returns it to its pool.
func (l *acquired) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = l.pgx().Close(ctx) // the connection is dropped even if the server does not notice
	l.release()
}

// poolSource takes connections from a pool of pgx.
type poolSource struct {
	pool      *pgxpool.Pool
	connector driver.Connector
	most      int // connections; a pool of pgx cannot change this
}

func newPoolSource(pool *pgxpool.Pool) *poolSource {
	return &poolSource{pool: pool, connector: stdlib.GetPoolConnector(pool), most: int(pool.Config().MaxConns)}
}

// sqlViewKey is the key under which a connection keeps its view for database/sql.
const sqlViewKey = "onceward: as database/sql sees it"

// acquire takes a connection. Its view for database/sql is kept with the connection: only the connector can make the
// view, and not for a connection that was already acquired. So if a connection has no view yet, it is released, and one
// is acquired through the connector.
func (s *poolSource) acquire(ctx context.Context) (acquired, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return acquired{}, err
	}
	conn := pooled.Conn()
	std, ok := conn.PgConn().CustomData()[sqlViewKey].(*stdlib.Conn)
	if ok && std.Conn() == conn {
		return acquired{conn: std, pooled: pooled}, nil
	}
	pooled.Release()
	made, err := s.connector.Connect(ctx)
	if err != nil {
		return acquired{}, err
	}
	std = made.(*stdlib.Conn)
	std.Conn().PgConn().CustomData()[sqlViewKey] = std
	return acquired{conn: std}, nil
}

func (s *poolSource) poolConfig(context.Context) (*pgxpool.Config, error) {
	return s.pool.Config(), nil
}

func (s *poolSource) used() int { return int(s.pool.Stat().AcquiredConns()) }

func (s *poolSource) size() int { return s.most }

func (s *poolSource) makes(int) bool { return makes(s.pool) }

// makes reports whether a pool would make a connection for a caller that acquires one now: no connection is free, and
// the pool may have more. Connections that are being made do not count.
func makes(pool *pgxpool.Pool) bool {
	stat := pool.Stat()
	return stat.IdleConns() == 0 && stat.TotalConns()-stat.ConstructingConns() < stat.MaxConns()
}

// sqlSource takes connections from a *sql.DB.
type sqlSource struct{ db *sql.DB }

func (s sqlSource) makes(beside int) bool { return sqltx.Makes(s.db, beside) }

func (s sqlSource) used() int { return s.db.Stats().InUse }

func (s sqlSource) size() int { return s.db.Stats().MaxOpenConnections }

func (s sqlSource) acquire(ctx context.Context) (acquired, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return acquired{}, err
	}
	var std *stdlib.Conn
	err = conn.Raw(func(driverConn any) error {
		std, err = unwrap(driverConn)
		return err
	})
	if err != nil {
		return acquired{}, errors.Join(err, conn.Close())
	}
	return acquired{conn: std, pooledSQL: conn}, nil
}

// unwrap returns the pgx connection inside wrappers that only observe it.
func unwrap(conn any) (*stdlib.Conn, error) {
	for {
		switch c := conn.(type) {
		case *stdlib.Conn:
			return c, nil
		case interface{ Raw() driver.Conn }:
			conn = c.Raw()
		case interface{ Unwrap() driver.Conn }:
			conn = c.Unwrap()
		default:
			return nil, fmt.Errorf("postgres: the *sql.DB hands out %T; open it with the driver of "+
				"github.com/jackc/pgx/v5/stdlib, or use New with a pool", conn)
		}
	}
}

func (s sqlSource) poolConfig(ctx context.Context) (*pgxpool.Config, error) {
	l, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.ConnConfig = l.pgx().Config()
	config.ConnConfig.OnNotification = nil // it is another connection's, for other channels
	return config, nil
}

// The transaction states of a connection, as the server reports them.
const (
	statusIdle   = 'I'
	statusInTx   = 'T'
	statusFailed = 'E'
)

// What a connection knows about its server may be outdated. A standby may have been promoted, which an idle
// connection notices only with its next reply. The address may lead to another server by now, which only a new
// connection finds out. So nothing is refused because of an earlier reply: the server is asked again, and a new
// connection finds out where the address leads.

// standbyKey marks the connections whose server refused to write when it was last asked.
const standbyKey = "onceward: leads to a standby"

// saysStandby reports whether the server accepted no writes at its last reply on this connection. Servers
// report a change automatically. Servers before PostgreSQL 14 and some poolers do not; for these,
// noteStandby marks the connection.
func saysStandby(conn *pgx.Conn) bool {
	status := conn.PgConn().ParameterStatus("in_hot_standby")
	return status == "on" || status == "" && conn.PgConn().CustomData()[standbyKey] != nil
}

// noteStandby marks the connection if an error of the server means that the server is a standby.
func noteStandby(conn *pgx.Conn, err error) {
	if fromStandby(err) {
		conn.PgConn().CustomData()[standbyKey] = known{}
	}
}

// The SQL states with which a standby refuses a write, and a transaction that may write.
const (
	stateReadOnly     = "25006"
	stateNotSupported = "0A000"
)

// fromStandby reports whether an error of this package's own statements came from a standby.
func fromStandby(err error) bool {
	state := sqlState(err)
	return state == stateReadOnly || state == stateNotSupported || errors.Is(err, ErrStandby)
}

// promoted asks the server whether it accepts writes now.
func promoted(ctx context.Context, conn *pgx.Conn) bool {
	standby := true
	err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeSimpleProtocol).Scan(&standby)
	if err != nil || standby {
		return false
	}
	delete(conn.PgConn().CustomData(), standbyKey)
	return true
}

// acquire takes a connection for a transaction, to a server that accepts writes. A connection to a standby is closed as
// soon as the address leads to such a server.
func (s *Store) acquire(ctx context.Context) (l acquired, err error) {
	within, _ := store.Value(ctx, gateKey{}).(*gate)
	give, err := s.slots.Take(ctx, within != nil && within.store == s)
	if err != nil {
		return l, err
	}
	defer func() {
		if err != nil {
			give()
		}
	}()
	for {
		l, err := redial.Do(ctx, &s.handlersGate, s.handlers.makes, s.handlers.acquire)
		if err != nil {
			return l, sqltx.Exhausted(ctx, err, s.handlers.used(), s.handlers.size())
		}
		if !saysStandby(l.pgx()) || promoted(ctx, l.pgx()) {
			l.give = give
			return l, nil
		}
		if !s.scout.look(ctx) {
			l.release()
			return acquired{}, ErrStandby
		}
		l.discard()
	}
}

// lookTimeout bounds auxiliary calls to the server.
const lookTimeout = 5 * time.Second

// neverPing lets a pool use its connections without a ping first.
func neverPing(context.Context, pgxpool.ShouldPingParams) bool { return false }

// pingMisled returns false like neverPing, except for a connection to a standby once the address leads to a server that
// accepts writes. It closes such a connection, so that the ping fails and the pool drops the connection. Until then the
// connection is used: its server refuses writes itself, or accepts them by now.
func (s *Store) pingMisled(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	if !saysStandby(p.Conn) || promoted(ctx, p.Conn) || !s.scout.look(ctx) {
		return false
	}
	_ = p.Conn.Close(ctx) // the connection is dropped even if the server does not notice
	return true
}

// scout finds out with a new connection whether the address leads to a server that accepts writes. It makes
// one connection at a time, however many callers ask, and each caller gets the result of a connection that
// was begun after its call.
type scout struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	current *sighting // the one that is running
	next    *sighting // for callers that came after current had begun
	closed  bool
	running sync.WaitGroup
}

// sighting is the result of one new connection.
type sighting struct {
	done    chan struct{}
	primary bool
}

// blind is the sighting of a closed scout.
var blind = func() *sighting {
	one := &sighting{done: make(chan struct{})}
	close(one.done)
	return one
}()

// look reports whether a new connection leads to a server that accepts writes.
func (s *scout) look(ctx context.Context) bool {
	one := s.join()
	select {
	case <-one.done:
		return one.primary
	case <-ctx.Done():
		return false
	}
}

// join returns the next sighting that begins.
func (s *scout) join() *sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return blind
	case s.current == nil:
		s.current = &sighting{done: make(chan struct{})}
		s.running.Go(s.run)
		return s.current
	case s.next == nil:
		s.next = &sighting{done: make(chan struct{})}
	}
	return s.next
}

// run makes sightings until no caller waits for another one.
func (s *scout) run() {
	for one := s.current; one != nil; {
		one.primary = s.sight()
		close(one.done)
		s.mu.Lock()
		s.current, s.next = s.next, nil
		one = s.current
		s.mu.Unlock()
	}
}

// sight makes a new connection, and reports whether its server accepts writes.
func (s *scout) sight() bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false
	}
	defer conn.Release()
	defer func() { _ = conn.Conn().Close(ctx) }() // it is only for this look
	return promoted(ctx, conn.Conn())
}

func (s *scout) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.pool.Close()
}
