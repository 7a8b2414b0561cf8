package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestingT is what of a *testing.T a [TestClock] needs. A program has none, so it cannot move its time by accident.
type TestingT interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// TestClock moves the clock of a store in a test: leases end, answers expire, and messages and reconciliations become
// due, without waiting for it. Time goes on by the server's clock, so much ahead of it.
//
// All statements take the time from one SQL function, and that is what is replaced: so everything moves together, for
// every process that uses the same tables. Timers of Go do not: a worker looks again when its RunOnce is called, a
// handler keeps its deadline, and its heartbeats come as before.
type TestClock struct {
	t TestingT
	// conn is the clock's own, so that the end of the store does not matter.
	conn   *pgx.Conn
	config *pgx.ConnConfig
	names  names
	// original is the function that was replaced.
	original string

	mu    sync.Mutex // one at a time uses the connection
	ahead time.Duration
}

const (
	// setTestClock adds what a table says to the server's time. The table has a key, so that the server looks it up in the
	// same way with every setting.
	setTestClock = `CREATE TABLE @test_clock (id integer PRIMARY KEY, ahead bigint NOT NULL);
		INSERT INTO @test_clock VALUES (1, 0);
		CREATE OR REPLACE FUNCTION @now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
			SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint + ahead FROM @test_clock WHERE id = 1
		$$`
	moveTestClock = `UPDATE @test_clock SET ahead = $1`
	dropTestClock = `DROP TABLE @test_clock`
)

// NewTestClock returns the clock of a store whose tables belong to this test alone, such as in a schema that the test
// has made. It fails the test if they hold a record or a message: a clock that jumps would do harm to others'
// operations. When the test ends the tables have the server's time again. The store's user must own the tables, as one
// does who made them.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	c := &TestClock{t: t, names: s.names, config: s.own.Config().ConnConfig}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var err error
	c.config.DialFunc = s.sockets.dial // it is none of the store's connections
	if c.conn, err = pgx.ConnectConfig(ctx, c.config); err != nil {
		t.Fatalf("postgres: connect for the clock of a test: %v", err)
	}
	if err := c.begin(ctx); err != nil {
		_ = c.conn.Close(ctx) // nothing is under way on it
		t.Fatalf("postgres: move the clock of a store: %v", err)
	}
	t.Cleanup(c.end)
	return c
}

// begin makes the clock one that can be moved, if it may be.
func (c *TestClock) begin(ctx context.Context) error {
	var used, moved bool
	err := c.conn.QueryRow(ctx,
		c.names.render(`SELECT EXISTS (SELECT FROM @record WHERE state <> 0) OR EXISTS (SELECT FROM @outbox),
			to_regclass($1) IS NOT NULL`), c.names.render(`@test_clock`)).Scan(&used, &moved)
	switch {
	case err != nil:
		return err
	case used:
		return errors.New("its tables hold records or messages already: open it in a schema of the test's own")
	case moved:
		return errors.New("there is another clock for its tables, or a test has left one: " +
			"open it in a schema of the test's own")
	}
	err = c.conn.QueryRow(ctx, `SELECT pg_get_functiondef(to_regprocedure($1))`,
		c.names.render(`@now()`)).Scan(&c.original)
	if err != nil {
		return err
	}
	_, err = c.conn.Exec(ctx, c.names.render(setTestClock))
	return err
}

// Advance moves the clock. It fails the test if it cannot.
func (c *TestClock) Advance(d time.Duration) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	c.ahead += d
	if err := c.connected(ctx, func() error {
		_, err := c.conn.Exec(ctx, c.names.render(moveTestClock), c.ahead.Microseconds())
		return err
	}); err != nil {
		c.t.Fatalf("postgres: move the clock of a store: %v", err)
	}
}

// end gives the tables the server's time again, unless the test has dropped them.
func (c *TestClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	defer func() { _ = c.conn.Close(ctx) }() // nothing is under way on it
	if err := c.connected(ctx, func() error { return c.restore(ctx) }); err != nil {
		c.t.Fatalf("postgres: give the tables the server's time again: %v", err)
	}
}

func (c *TestClock) restore(ctx context.Context) error {
	var there bool
	err := c.conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, c.names.render(`@test_clock`)).Scan(&there)
	if err == nil && there {
		_, err = c.conn.Exec(ctx, c.original+`; `+c.names.render(dropTestClock))
	}
	return err
}

// connected does something that may be repeated, once more if the connection was lost: a test may end connections, or
// the server.
func (c *TestClock) connected(ctx context.Context, do func() error) error {
	err := do()
	if err == nil || !c.conn.IsClosed() {
		return err
	}
	conn, connectErr := pgx.ConnectConfig(ctx, c.config)
	if connectErr != nil {
		return errors.Join(err, connectErr)
	}
	c.conn = conn
	return do()
}
