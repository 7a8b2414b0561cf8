package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// source is where the connections of handlers come from: a pool of pgx, or a *sql.DB over pgx.
type source interface {
	// acquire lends a connection.
	acquire(ctx context.Context) (lent, error)
	// poolConfig is how to connect in the same way.
	poolConfig(ctx context.Context) (*pgxpool.Config, error)
}

// lent is a connection that belongs to a source.
type lent struct {
	// conn is the connection as database/sql sees it, which is how a *sql.Tx can be made of it.
	conn *stdlib.Conn
	// pooled or pooledSQL is how its pool sees it. Neither is there for one that knows its own way back.
	pooled    *pgxpool.Conn
	pooledSQL *sql.Conn
}

// pgx returns the connection itself.
func (l *lent) pgx() *pgx.Conn { return l.conn.Conn() }

// giveBack returns it. One that was closed, or is still in a transaction, is not used again.
func (l *lent) giveBack() {
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
func (l *lent) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = l.pgx().Close(ctx) // it is given up whether or not the server hears of it
	l.giveBack()
}

// poolSource lends from a pool of pgx.
type poolSource struct {
	pool      *pgxpool.Pool
	connector driver.Connector
}

func newPoolSource(pool *pgxpool.Pool) *poolSource {
	return &poolSource{pool: pool, connector: stdlib.GetPoolConnector(pool)}
}

// sqlViewKey is where a connection keeps how database/sql sees it.
const sqlViewKey = "onceward: as database/sql sees it"

// acquire lends a connection. How database/sql sees it is kept with it, because only the connector can make that, and not
// for a connection that is already there: one that comes for the first time is acquired once more, through the connector.
func (s *poolSource) acquire(ctx context.Context) (lent, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return lent{}, err
	}
	conn := pooled.Conn()
	std, ok := conn.PgConn().CustomData()[sqlViewKey].(*stdlib.Conn)
	if ok && std.Conn() == conn {
		return lent{conn: std, pooled: pooled}, nil
	}
	pooled.Release()
	made, err := s.connector.Connect(ctx)
	if err != nil {
		return lent{}, err
	}
	std = made.(*stdlib.Conn)
	std.Conn().PgConn().CustomData()[sqlViewKey] = std
	return lent{conn: std}, nil
}

func (s *poolSource) poolConfig(context.Context) (*pgxpool.Config, error) {
	return s.pool.Config(), nil
}

// sqlSource lends from a *sql.DB.
type sqlSource struct{ db *sql.DB }

func (s sqlSource) acquire(ctx context.Context) (lent, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return lent{}, err
	}
	var std *stdlib.Conn
	err = conn.Raw(func(driverConn any) error {
		std, err = unwrap(driverConn)
		return err
	})
	if err != nil {
		return lent{}, errors.Join(err, conn.Close())
	}
	return lent{conn: std, pooledSQL: conn}, nil
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
			return nil, fmt.Errorf("postgres: the *sql.DB hands out %T; open it with the driver of github.com/jackc/pgx/v5/stdlib, or use New with a pool", conn)
		}
	}
}

func (s sqlSource) poolConfig(ctx context.Context) (*pgxpool.Config, error) {
	l, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.giveBack()
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.ConnConfig = l.pgx().Config()
	return config, nil
}

// The states of a connection, as the server reports them.
const (
	statusIdle   = 'I'
	statusInTx   = 'T'
	statusFailed = 'E'
)
