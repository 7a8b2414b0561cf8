package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestingT is the part of *testing.T that a [TestClock] needs. A program has no *testing.T, so it cannot
// move its time by accident.
type TestingT interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// TestClock moves the clock of a store in a test: leases end, answers expire, and messages and reconciliations become
// due, without waiting. Time continues with the server's clock, ahead of it by the time that the clock was moved.
//
// All statements read the time from one SQL function, which a TestClock replaces. So everything moves together, for
// every process that uses the same tables. Timers of Go do not move: a worker looks again when its RunOnce is called, a
// handler keeps its deadline, and its heartbeats continue at their usual interval.
type TestClock struct {
	t TestingT
	// pool is the clock's own, so that it works after the store was closed.
	pool  *pgxpool.Pool
	names names
	// original is the function that was replaced.
	original string
}

const (
	// setTestClock adds the value in a table to the server's time. The table has a key, so that the server looks the
	// value up in the same way with every setting.
	setTestClock = `CREATE TABLE @test_clock (id integer PRIMARY KEY, ahead bigint NOT NULL);
		INSERT INTO @test_clock VALUES (1, 0);
		CREATE OR REPLACE FUNCTION @now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
			SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint + ahead FROM @test_clock WHERE id = 1
		$$`
	moveTestClock = `UPDATE @test_clock SET ahead = ahead + $1`
	dropTestClock = `DROP TABLE @test_clock`
)

// NewTestClock returns a clock for a store whose tables belong to this test alone, for example in a schema that the
// test has made. It fails the test if the tables hold a record or a message, because a clock that jumps would harm the
// operations of others. When the test ends, the tables use the server's time again. The store's user must own the
// tables, as the user that created them does.
func NewTestClock(t TestingT, s *Store) *TestClock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	config := s.own.Config()
	config.MaxConns = 1
	config.ConnConfig.DialFunc = s.sockets.dial // it is not one of the store's connections
	// A test may close connections, or stop the server.
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

// begin replaces the SQL function, unless the tables are in use or have another test clock.
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

// Advance moves the clock by d. It fails the test if that is not possible.
func (c *TestClock) Advance(d time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if _, err := c.pool.Exec(ctx, c.names.render(moveTestClock), d.Microseconds()); err != nil {
		c.t.Fatalf("postgres: move the clock of a store: %v", err)
	}
}

// end makes the tables use the server's time again, unless the test has dropped them.
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
