package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/postgres"
)

// sqlHandler runs f in a transaction that commits, on both kinds of handle: a *sql.Tx is had on each.
func sqlHandler(t *testing.T, f func(s *shop, ctx context.Context, tx *sql.Tx)) {
	t.Helper()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, h)
			transacted(t, s.store, "key", func(ctx context.Context) error {
				f(s, ctx, onceward.Tx(ctx))
				return nil
			})
			s.wantRows("E1", "written")
			wantReplay(t, s.store, "key", "key", "I3")
		})
	}
}

// TestSQLEndedByTheHandler: a handler that ends its *sql.Tx, as it is used to, ends only the handle; the transaction
// ends as the guard says.
func TestSQLEndedByTheHandler(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqlHandler(t, func(s *shop, ctx context.Context, tx *sql.Tx) {
				must(s, insertSQL(ctx, "written"))
				ownedErr(s, name, end(tx))
				if _, err := tx.ExecContext(ctx, insertion, "behind"); !errors.Is(err, sql.ErrTxDone) {
					s.Errorf("the handle that was ended got %v, want ErrTxDone", err)
				}
				s.wantRows("E1: nothing is visible before the end")
			})
		})
	}
}

// TestSQLStatements: prepared statements, rows, values and errors are as in any other transaction.
func TestSQLStatements(t *testing.T) {
	t.Parallel()
	sqlHandler(t, func(s *shop, ctx context.Context, tx *sql.Tx) {
		add, err := tx.PrepareContext(ctx, insertion)
		must(s, err)
		result, err := add.ExecContext(ctx, "written")
		must(s, err)
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			s.Errorf("the insert says (%d, %v)", n, err)
		}
		if _, err := add.ExecContext(ctx); err == nil {
			s.Error("an argument is missing, and it goes unnoticed")
		}
		find, err := tx.Prepare(`SELECT count(*) FROM business WHERE value = $1`)
		must(s, err)
		for value, want := range map[string]int{"written": 1, "absent": 0} {
			var n int
			if err := find.QueryRow(value).Scan(&n); err != nil || n != want {
				s.Errorf("there are (%d, %v) rows of %q, want %d", n, err, value, want)
			}
		}
		must(s, find.Close())
		var value string
		err = tx.QueryRowContext(ctx, `SELECT value FROM business WHERE false`).Scan(&value)
		if !errors.Is(err, sql.ErrNoRows) {
			s.Errorf("no rows got %v", err)
		}
		if sum := sumOf(s, tx, `SELECT i FROM generate_series(1, 100) AS i`); sum != 5050 {
			s.Errorf("a hundred rows sum up to %d", sum)
		}
		var list string
		if err := tx.QueryRow(`SELECT $1::bigint[]`, []int64{1, 2, 3}).Scan(&list); err != nil || list != "{1,2,3}" {
			s.Errorf("an array, which only pgx knows, came back as (%s, %v)", list, err)
		}
	})
}

func sumOf(s *shop, tx *sql.Tx, query string) (sum int) {
	s.Helper()
	rows, err := tx.Query(query)
	must(s, err)
	defer rows.Close()
	for rows.Next() {
		var i int
		must(s, rows.Scan(&i))
		sum += i
	}
	must(s, rows.Err())
	return sum
}

// TestSQLSavepoint: those who use database/sql make savepoints by statements.
func TestSQLSavepoint(t *testing.T) {
	t.Parallel()
	sqlHandler(t, func(s *shop, ctx context.Context, tx *sql.Tx) {
		must(s, insertSQL(ctx, "written"))
		_, err := tx.ExecContext(ctx, `SAVEPOINT mine`)
		must(s, err)
		_, err = tx.ExecContext(ctx, insertion, "written")
		var violation *pgconn.PgError
		if !errors.As(err, &violation) || violation.Code != "23505" {
			s.Errorf("a duplicate got %v, want an error of PostgreSQL", err)
		}
		_, err = tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT mine`)
		must(s, err)
	})
}

// TestBothHandles: one handler may use the native transaction and the *sql.Tx in turn; they are the same.
func TestBothHandles(t *testing.T) {
	t.Parallel()
	sqlHandler(t, func(s *shop, ctx context.Context, tx *sql.Tx) {
		must(s, insertPgx(ctx, "written"))
		var n int
		if err := tx.QueryRow(`SELECT count(*) FROM business`).Scan(&n); err != nil || n != 1 {
			s.Errorf("the *sql.Tx sees (%d, %v) rows of the native one", n, err)
		}
	})
}

// foreign is a driver of another database.
type foreign struct{}

func (foreign) Connect(context.Context) (driver.Conn, error) { return foreign{}, nil }
func (foreign) Driver() driver.Driver                        { return nil }
func (foreign) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (foreign) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (foreign) Close() error                                 { return nil }

// TestForeignDriver: a handle of another driver is refused in words that say what to do.
func TestForeignDriver(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(foreign{})
	defer db.Close()
	_, err := postgres.NewSQL(t.Context(), db, quiet)
	if err == nil || !strings.Contains(err.Error(),
		"hands out postgres_test.foreign; open it with the driver of github.com/jackc/pgx/v5/stdlib") {
		t.Errorf("a foreign driver got %v", err)
	}
}

// observed is a connection under one of those that only look on, as tracing wraps it.
type observed struct {
	*stdlib.Conn
	raws *atomic.Int64
}

// Raw is how such wrappers let others through.
func (o observed) Raw() driver.Conn {
	o.raws.Add(1)
	return o.Conn
}

// observing wraps each connection of a connector.
type observing struct {
	driver.Connector
	raws atomic.Int64
}

// Connect implements [driver.Connector].
func (o *observing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := o.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return observed{conn.(*stdlib.Conn), &o.raws}, nil
}

// TestObservingDriver: a driver that wraps that of pgx, and lets others through, is as good.
func TestObservingDriver(t *testing.T) {
	t.Parallel()
	s := newShop(t, handle{"observed", func(t testing.TB, url string, options ...postgres.Option) (*postgres.Store, func()) {
		config, err := pgx.ParseConfig(url)
		must(t, err)
		wrapped := &observing{Connector: stdlib.GetConnector(*config)}
		db := sql.OpenDB(wrapped)
		store, err := postgres.NewSQL(t.Context(), db, append(options, quiet)...)
		must(t, err)
		return store, func() {
			must(t, db.Close())
			if wrapped.raws.Load() == 0 {
				t.Error("the wrapper was not asked")
			}
		}
	}, insertSQL})
	transacted(t, s.store, "key", func(ctx context.Context) error { return insertSQL(ctx, "written") })
	s.wantRows("E1", "written")
	exercise(t, s.store, "observed")
}

// TestSharedDB: the connections that a store borrows from the application go back as they were.
func TestSharedDB(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(servers.Postgres(t).SchemaURL(t))
	must(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxOpenConns(1)
	store, err := postgres.NewSQL(t.Context(), db, quiet)
	must(t, err)
	defer store.Close()
	for _, key := range keys("key", 3) {
		transacted(t, store, key, nothing)
		var idle string
		must(t, db.QueryRow(`SHOW idle_in_transaction_session_timeout`).Scan(&idle))
		if stats := db.Stats(); idle != "0" || stats.InUse != 0 || stats.OpenConnections != 1 {
			t.Errorf("after a transaction the limit is %s, and the pool is %+v", idle, stats)
		}
	}
}

type (
	callerKey struct{}
	childKey  struct{}
)

// TestHandlerContext: a handler's context has the caller's values and its transaction, and does not end with the
// caller.
func TestHandlerContext(t *testing.T) {
	t.Parallel()
	for _, h := range []handle{pgxHandle, sqlHandle} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, h)
			caller, leave := context.WithCancel(context.WithValue(t.Context(), callerKey{}, "alice"))
			_, err := s.store.Transact(caller, reservation("key"), committing("key", func(ctx context.Context) error {
				leave()
				checkHandlerContext(t, ctx)
				return h.insert(ctx, "one")
			}))
			must(t, err)
			s.wantRows("E6", "one")
		})
	}
}

func checkHandlerContext(t testing.TB, ctx context.Context) {
	t.Helper()
	if _, bounded := ctx.Deadline(); bounded || ctx.Err() != nil || context.Cause(ctx) != nil {
		t.Errorf("E6: the context ended with the caller: %v, %v", ctx.Err(), context.Cause(ctx))
	}
	child, cancel := context.WithCancel(context.WithValue(ctx, childKey{}, "mine"))
	cancel()
	if got := child.Value(callerKey{}); got != "alice" {
		t.Errorf("the caller's value is %v", got)
	}
	if ctx.Err() != nil || child.Err() == nil {
		t.Errorf("a child that was cancelled has %v, its parent %v", child.Err(), ctx.Err())
	}
	tx, ok := onceward.LookupTx(child)
	if again, _ := onceward.LookupTx(ctx); !ok || tx != again {
		t.Error("the context does not give the same *sql.Tx each time")
	}
	if _, ok := postgres.LookupTx(child); !ok {
		t.Error("the context does not give the transaction of pgx")
	}
}

// TestHandlesOnOneConnection: a connection serves one handler after the other, whichever handle each of them takes.
func TestHandlesOnOneConnection(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	const rounds = 3
	var want []string
	for i, key := range keys("handles", 2*rounds) {
		insert := []handle{pgxHandle, sqlHandle}[i%2].insert
		transacted(t, s.store, key, func(ctx context.Context) error { return insert(ctx, key) })
		want = append(want, key)
	}
	s.wantRows("E1", want...)
}
