package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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
	// pool is the clock's own, so that the end of the store does not matter.
	pool  *pgxpool.Pool
	names names
	// original is the function that was replaced.
	original string
}

const (
	// setTestClock adds what a table says to the server's time. The table has a key, so that the server looks it up in the
	// same way with every setting.
	setTestClock = `CREATE TABLE @test_clock (id integer PRIMARY KEY, ahead bigint NOT NULL);
		INSERT INTO @test_clock VALUES (1, 0);
		CREATE OR REPLACE FUNCTION @now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
			SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint + ahead FROM @test_clock WHERE id = 1
		$$`
	moveTestClock = `UPDATE @test_clock SET ahead = ahead + $1`
	dropTestClock = `DROP TABLE @test_clock`
)

// NewTestClock returns the clock of a store whose tables belong to this test alone, such as in a schema that the test
// has made. It fails the test if they hold a record or a message: a clock that jumps would do harm to others'
// operations. When the test ends the tables have the server's time again. The store's user must own the tables, as one
// does who made them.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	config := s.own.Config()
	config.MaxConns = 1
	config.ConnConfig.DialFunc = s.sockets.dial // it is none of the store's connections
	// A test may end connections, or the server.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatalf("postgres: connect for the clock of a test: %v", err)
	}
	c := &TestClock{t: t, pool: pool, names: s.names}
	if err := c.begin(ctx); err != nil {
		pool.Close()
		t.Fatalf("postgres: move the clock of a store: %v", err)
	}
	t.Cleanup(c.end)
	return c
}

// begin makes the clock one that can be moved, if it may be.
func (c *TestClock) begin(ctx context.Context) error {
	var used, moved bool
	err := c.pool.QueryRow(ctx,
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
	err = c.pool.QueryRow(ctx, `SELECT pg_get_functiondef(to_regprocedure($1))`,
		c.names.render(`@now()`)).Scan(&c.original)
	if err != nil {
		return err
	}
	_, err = c.pool.Exec(ctx, c.names.render(setTestClock))
	return err
}

// Advance moves the clock. It fails the test if it cannot.
func (c *TestClock) Advance(d time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if _, err := c.pool.Exec(ctx, c.names.render(moveTestClock), d.Microseconds()); err != nil {
		c.t.Fatalf("postgres: move the clock of a store: %v", err)
	}
}

// end gives the tables the server's time again, unless the test has dropped them.
func (c *TestClock) end() {
	defer c.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var there bool
	err := c.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, c.names.render(`@test_clock`)).Scan(&there)
	if err == nil && there {
		_, err = c.pool.Exec(ctx, c.original+`; `+c.names.render(dropTestClock))
	}
	if err != nil {
		c.t.Fatalf("postgres: give the tables the server's time again: %v", err)
	}
}
