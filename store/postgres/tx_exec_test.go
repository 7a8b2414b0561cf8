package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// executor runs statements on one connection, each in a transaction of its own, and returns what came of each: the tag,
// or the error.
type executor struct {
	testing.TB
	admin, pool *pgxpool.Pool
	exec        func(sql string, args ...any) (pgconn.CommandTag, error)
	said        []string
}

func (e *executor) run(sql string, args ...any) {
	tag, err := e.exec(sql, args...)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused):
		e.said = append(e.said, refused.Code)
	case err != nil:
		e.said = append(e.said, err.Error())
	default:
		e.said = append(e.said, tag.String())
	}
}

// alter runs a statement on another connection.
func (e *executor) alter(sql string) { exec(e, e.admin, sql) }

// discard lets the server forget a prepared statement, as a pooler does.
func (e *executor) discard(sql string) {
	exec(e, e.pool, fmt.Sprintf(`DO $do$ BEGIN
		EXECUTE (SELECT 'DEALLOCATE ' || quote_ident(name) FROM pg_prepared_statements WHERE statement = '%s'); END $do$`, sql))
}

// newExecutor makes tables for one who runs statements by itself, or in the handlers of a store.
func newExecutor(t testing.TB, handlers bool, configure func(*pgxpool.Config)) *executor {
	t.Helper()
	url := servers.Postgres(t).SchemaURL(t)
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = 1
	configure(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	e := &executor{TB: t, admin: openAdmin(t, url), pool: pool}
	e.alter(`CREATE TABLE business (value text NOT NULL UNIQUE, amount integer)`)
	if !handlers {
		e.exec = func(sql string, args ...any) (tag pgconn.CommandTag, err error) {
			failed := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
				tag, err = tx.Exec(context.Background(), sql, args...)
				return err
			})
			return tag, cmp.Or(err, failed)
		}
		return e
	}
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	calls := 0
	e.exec = func(sql string, args ...any) (tag pgconn.CommandTag, err error) {
		calls++
		_, failed := s.Transact(context.Background(), reservation(fmt.Sprint("call ", calls)),
			func(ctx context.Context, _ store.Verdict) store.Settlement {
				if tag, err = postgres.Tx(ctx).Exec(ctx, sql, args...); err != nil {
					return store.Settlement{Action: store.TxRollback}
				}
				return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
			})
		return tag, cmp.Or(err, failed)
	}
	return e
}

// TestExecIsThatOfPgx: whatever a handler executes, and whatever happens to its tables meanwhile, it gets what it would
// get from pgx, for as many calls.
func TestExecIsThatOfPgx(t *testing.T) {
	t.Parallel()
	const insert, remove = `INSERT INTO business (value, amount) VALUES ($1, $2)`, `DELETE FROM business WHERE value = $1`
	repeat := func(e *executor, n int, sql string, args ...any) {
		for range n {
			e.run(sql, args...)
		}
	}
	for name, test := range map[string]struct {
		configure func(*pgxpool.Config)
		run       func(e *executor)
	}{
		"again and again": {nil, func(e *executor) {
			for i := range 4 {
				e.run(insert, fmt.Sprint("row ", i), i)
				e.run(remove, fmt.Sprint("row ", i-1))
			}
		}},
		"a row that is there": {nil, func(e *executor) {
			repeat(e, 4, insert, "one", 1)
			repeat(e, 2, remove, "one")
			repeat(e, 2, insert, "one", 1)
		}},
		"arguments that do not fit": {nil, func(e *executor) {
			e.run(insert, "one", 1)
			e.run(insert, "two", 2)
			e.run(insert, "three")
			e.run(insert, "three", "many")
			e.run(insert, "three", struct{}{})
			e.run(insert, "three", 3)
		}},
		"no value": {nil, func(e *executor) {
			for _, value := range []string{"one", "two", "three"} {
				e.run(insert, value, nil)
			}
		}},
		"arguments in front": {nil, func(e *executor) {
			named := `INSERT INTO business (value, amount) VALUES (@value, @amount)`
			for i := range 3 {
				e.run(named, pgx.NamedArgs{"value": fmt.Sprint("named ", i), "amount": i})
				e.run(insert, pgx.QueryExecModeExec, fmt.Sprint("exec ", i), i)
				e.run(insert, pgx.QueryExecModeSimpleProtocol, fmt.Sprint("simple ", i), i)
				e.run(insert, fmt.Sprint("plain ", i), i)
			}
		}},
		"rows that are not read": {nil, func(e *executor) {
			for i := range 3 {
				e.run(insert+` RETURNING value`, fmt.Sprint("row ", i), i)
				e.run(`SELECT value FROM business WHERE amount >= $1`, 0)
			}
		}},
		"another type of a column": {nil, func(e *executor) {
			repeat(e, 2, insert, "one", 1)
			e.run(insert, "two", 2)
			e.alter(`ALTER TABLE business ALTER amount TYPE text USING amount::text`)
			for _, value := range []string{"three", "four", "five", "six"} {
				e.run(insert, value, "3")
			}
		}},
		"rows in the place of none": {nil, func(e *executor) {
			e.alter(`CREATE FUNCTION book(value text) RETURNS void LANGUAGE sql AS 'INSERT INTO business VALUES (value)'`)
			repeat(e, 2, `CALL missing($1)`, "one")
			for i := range 3 {
				e.run(`SELECT FROM book($1)`, fmt.Sprint("row ", i))
			}
		}},
		"a table that is made again": {nil, func(e *executor) {
			repeat(e, 2, remove, "one")
			e.alter(`DROP TABLE business`)
			repeat(e, 3, remove, "one")
			e.alter(`CREATE TABLE business (amount integer, value text)`)
			repeat(e, 3, remove, "one")
			repeat(e, 3, insert, "one", 1)
		}},
		"statements that are discarded": {nil, func(e *executor) {
			repeat(e, 2, remove, "one")
			e.discard(remove)
			repeat(e, 4, remove, "one")
		}},
		"more statements than are kept": {func(c *pgxpool.Config) { c.ConnConfig.StatementCacheCapacity = 16 }, func(e *executor) {
			for range 3 {
				repeat(e, 2, remove, "one")
				for i := range 20 { // of which pgx alone takes note
					e.run(fmt.Sprintf(`DELETE FROM business WHERE amount = %d AND value = @value`, i), pgx.NamedArgs{"value": "one"})
				}
			}
		}},
		"a statement by its name": {func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Prepare(ctx, "remove", remove)
				_, failed := conn.Prepare(ctx, insert, insert)
				return errors.Join(err, failed)
			}
		}, func(e *executor) {
			repeat(e, 3, "remove", "one")
			repeat(e, 3, insert, "one", 1)
			for i := range 6 {
				if i == 3 {
					e.discard(insert)
				}
				e.run(insert, fmt.Sprint("row ", i), i)
			}
		}},
		"no prepared statements": {func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}, func(e *executor) { repeat(e, 3, remove, "one") }},
	} {
		t.Run(name, func(t *testing.T) {
			among(t, name, "again and again", "a row that is there", "arguments that do not fit")
			t.Parallel()
			configure := func(c *pgxpool.Config) {
				if test.configure != nil {
					test.configure(c)
				}
			}
			alone, handler := newExecutor(t, false, configure), newExecutor(t, true, configure)
			test.run(alone)
			test.run(handler)
			if !slices.Equal(handler.said, alone.said) {
				t.Errorf("handlers got\n%q, pgx alone\n%q", handler.said, alone.said)
			}
		})
	}
}

// TestTracersSeeStatements: a tracer of the pool is told of each statement of a handler.
func TestTracersSeeStatements(t *testing.T) {
	t.Parallel()
	var traced sentCounter
	e := newExecutor(t, true, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &traced })
	for i := range 5 {
		before := traced.sent.Load()
		e.run(`DELETE FROM business WHERE value = $1`, "one")
		if n := traced.sent.Load() - before; n != 1 && i > 0 { // the first looks up the number of its operation
			t.Errorf("of call %d the tracer was told of %d statements, want 1", i, n)
		}
	}
}
