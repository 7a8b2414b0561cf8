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

// source is where the connections of handlers come from: a pool of pgx, or a *sql.DB over pgx.
type source interface {
	// acquire takes a connection.
	acquire(ctx context.Context) (acquired, error)
	// poolConfig is how to connect in the same way.
	poolConfig(ctx context.Context) (*pgxpool.Config, error)
	// makes reports whether a connection would be made for who acquires one now.
	makes(beside int) bool
	// used is how many connections are in use.
	used() int
	// size is how many connections there are at most, zero for no bound.
	size() int
}

// acquired is a connection that belongs to a source.
type acquired struct {
	// conn is the connection as database/sql sees it, which is how a *sql.Tx can be made of it.
	conn *stdlib.Conn
	// pooled or pooledSQL is how its pool sees it. Neither is there for one that knows its own way back.
	pooled    *pgxpool.Conn
	pooledSQL *sql.Conn
	// give gives back the share of the pool that its transaction has taken.
	give func()
}

// pgx returns the connection itself.
func (l *acquired) pgx() *pgx.Conn { return l.conn.Conn() }

// release returns it. One that was closed, or is still in a transaction, is not used again.
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
		_ = l.conn.Close() // which releases it
	}
}

// discard closes it instead.
func (l *acquired) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = l.pgx().Close(ctx) // it is given up whether or not the server hears of it
	l.release()
}

// poolSource takes connections from a pool of pgx.
type poolSource struct {
	pool      *pgxpool.Pool
	connector driver.Connector
	most      int // connections, which a pool of pgx cannot change
}

func newPoolSource(pool *pgxpool.Pool) *poolSource {
	return &poolSource{pool: pool, connector: stdlib.GetPoolConnector(pool), most: int(pool.Config().MaxConns)}
}

// sqlViewKey is where a connection keeps how database/sql sees it.
const sqlViewKey = "onceward: as database/sql sees it"

// acquire takes a connection. How database/sql sees it is kept with it, because only the connector can make that, and
// not for a connection that is already there: one that comes for the first time is acquired once more, through the
// connector.
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

// makes reports whether a pool would make a connection for who acquires one now: it has none that is free, and may have
// more beside those that are being made.
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

// unwrap finds the connection of pgx under those that only observe it.
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
	config.ConnConfig.OnNotification = nil // it is that of the connection, which would be given what others hear
	return config, nil
}

// The states of a connection, as the server reports them.
const (
	statusIdle   = 'I'
	statusInTx   = 'T'
	statusFailed = 'E'
)

// What a connection knows of its server gets old: a standby may be promoted, which an idle connection hears of with
// its next answer alone, and the address may lead to another server by now, which only a new connection finds out.
// So nothing is refused for what a connection has said before: it is asked again, and a new one tells where the
// address leads.

// standbyKey marks the connections whose server refused to write when it was asked last.
const standbyKey = "onceward: leads to a standby"

// saysStandby reports whether the server took no writes when it answered on this connection last. It tells by itself
// when that changes; one before PostgreSQL 14 does not, nor do some poolers, and then it is noted.
func saysStandby(conn *pgx.Conn) bool {
	status := conn.PgConn().ParameterStatus("in_hot_standby")
	return status == "on" || status == "" && conn.PgConn().CustomData()[standbyKey] != nil
}

// noteStandby remembers what an error of the server says of it.
func noteStandby(conn *pgx.Conn, err error) {
	if fromStandby(err) {
		conn.PgConn().CustomData()[standbyKey] = known{}
	}
}

// The states by which a standby refuses to write, and to begin a transaction that may.
const (
	stateReadOnly     = "25006"
	stateNotSupported = "0A000"
)

// fromStandby reports whether an error of this package's own statements is that of a standby.
func fromStandby(err error) bool {
	state := sqlState(err)
	return state == stateReadOnly || state == stateNotSupported || errors.Is(err, ErrStandby)
}

// promoted asks the server whether it takes writes by now.
func promoted(ctx context.Context, conn *pgx.Conn) bool {
	standby := true
	err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeSimpleProtocol).Scan(&standby)
	if err != nil || standby {
		return false
	}
	delete(conn.PgConn().CustomData(), standbyKey)
	return true
}

// acquire takes a connection for a transaction, of a server that takes writes. Those that lead to a standby are given
// up as soon as the address leads elsewhere.
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

// lookTimeout bounds what is read on the side.
const lookTimeout = 5 * time.Second

// neverPing lets the connections of a pool be used without asking first.
func neverPing(context.Context, pgxpool.ShouldPingParams) bool { return false }

// pingMisled is neverPing but for connections that lead to a standby. They are given up as soon as the address leads
// elsewhere, by a ping that must fail. Until then they are used: the server refuses by itself, or takes writes by
// now.
func (s *Store) pingMisled(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	if !saysStandby(p.Conn) || promoted(ctx, p.Conn) || !s.scout.look(ctx) {
		return false
	}
	_ = p.Conn.Close(ctx) // it is given up whether or not the server hears of it
	return true
}

// scout finds out whether the address leads to a server that takes writes, by a new connection. However many ask, one
// connection is made at a time, and everyone gets to know what was found after they had asked.
type scout struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	current *sighting // under way
	next    *sighting // for those who came when that had begun
	closed  bool
	running sync.WaitGroup
}

// sighting is what one new connection found.
type sighting struct {
	done    chan struct{}
	primary bool
}

// blind is what a scout finds that is closed.
var blind = func() *sighting {
	one := &sighting{done: make(chan struct{})}
	close(one.done)
	return one
}()

// look reports whether a new connection leads to a server that takes writes.
func (s *scout) look(ctx context.Context) bool {
	one := s.join()
	select {
	case <-one.done:
		return one.primary
	case <-ctx.Done():
		return false
	}
}

// join takes part in the next sighting.
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

// run makes sightings as long as they are asked for.
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

// sight makes a new connection.
func (s *scout) sight() bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false
	}
	defer conn.Release()
	defer func() { _ = conn.Conn().Close(ctx) }() // it is for this alone
	return promoted(ctx, conn.Conn())
}

func (s *scout) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.pool.Close()
}
