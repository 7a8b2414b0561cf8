package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 10: a driver that retries by itself. From v5.9.0 on pgx calls a statement safe to repeat when the
// connection was lost before its reply, and database/sql repeats what its driver calls so. These tests say in which
// releases that is so, of statements outside of our transactions, and that nothing is repeated inside of them.
// Onceward believes no error of a COMMIT.

// driverMinor is the minor version of pgx v5 that the test was built with. A test has no other way to know than the
// path of the sources.
func driverMinor(t *testing.T) int {
	t.Helper()
	at := reflect.ValueOf(pgx.Connect).Pointer()
	file, _ := runtime.FuncForPC(at).FileLine(at)
	found := regexp.MustCompile(`/pgx/v5@v5\.(\d+)\.`).FindStringSubmatch(file)
	if found == nil {
		t.Fatalf("the version of pgx cannot be told from %s", file)
	}
	minor, err := strconv.Atoi(found[1])
	must(t, err)
	return minor
}

// misjudges reports whether this pgx calls a statement safe to repeat although its reply was lost.
func misjudges(t *testing.T) bool {
	t.Helper()
	return driverMinor(t) >= 9
}

// lostReply has statements of plain pgx run of which one lands, and its reply does not.
func lostReply(t *testing.T, run func(conn *pgx.Conn) error) (s *site, err error) {
	t.Helper()
	s = newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	conn := connect(t, proxy.URL())
	proxy.CutReply(isCommit)
	err = run(conn)
	if n := proxy.Sprung(); n != 1 {
		t.Fatalf("%d answers were cut, want 1", n)
	}
	return s, err
}

// TestDriverOnALostCommit: what pgx says of a COMMIT whose reply was lost, and which has landed.
func TestDriverOnALostCommit(t *testing.T) {
	t.Parallel()
	const pay = `INSERT INTO business (value) VALUES ('paid')`
	ways := map[string]struct {
		run func(t *testing.T, conn *pgx.Conn) error
		// misjudged says that releases which misjudge do it here.
		misjudged bool
	}{
		"Tx.Commit": {func(t *testing.T, conn *pgx.Conn) error {
			tx, err := conn.Begin(t.Context())
			must(t, err)
			_, err = tx.Exec(t.Context(), pay)
			must(t, err)
			return tx.Commit(t.Context())
		}, true},
		"Exec": {func(t *testing.T, conn *pgx.Conn) error {
			_, err := conn.Exec(t.Context(), "BEGIN; "+pay+"; COMMIT")
			return err
		}, true},
		"SendBatch": {func(t *testing.T, conn *pgx.Conn) error {
			batch := &pgx.Batch{}
			batch.Queue(`BEGIN`)
			batch.Queue(`INSERT INTO business (value) VALUES ($1)`, "paid")
			batch.Queue(`COMMIT`)
			return conn.SendBatch(t.Context(), batch).Close()
		}, false},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, err := lostReply(t, func(conn *pgx.Conn) error { return way.run(t, conn) })
			want := way.misjudged && misjudges(t)
			if safe := pgconn.SafeToRetry(err); err == nil || safe != want {
				t.Errorf("the reply to COMMIT was lost: got %v, safe to retry %t; want an error, and %t from pgx v5.%d: "+
					"correct decision 7 and the guide if this release differs", err, safe, want, driverMinor(t))
			}
			s.wantRows(t, "paid", 1, "the commit had landed")
		})
	}
}

// TestDriverRepeatsAnExec: outside of our transactions, database/sql repeats a statement that pgx calls safe, with
// no sign of it.
func TestDriverRepeatsAnExec(t *testing.T) {
	t.Parallel()
	const plain, withArgument = `INSERT INTO business (value) VALUES ('paid')`, `INSERT INTO business (value) VALUES ($1)`
	exec := func(statement string, args ...any) func(context.Context, *sql.DB) error {
		return func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, statement, args...)
			return err
		}
	}
	ways := map[string]struct {
		run func(ctx context.Context, db *sql.DB) error
		// rows are what is there afterwards if nothing is repeated.
		rows      int
		misjudged bool
	}{
		"without arguments":                     {exec(plain), 1, true},
		"with an argument":                      {exec(withArgument, "paid"), 1, false},
		"with an argument, the simple protocol": {exec(withArgument, pgx.QueryExecModeSimpleProtocol, "paid"), 1, true},
		"a query without arguments": {func(ctx context.Context, db *sql.DB) error {
			return db.QueryRowContext(ctx, plain+` RETURNING number`).Scan(new(int64))
		}, 1, false},
		"in a transaction": {func(ctx context.Context, db *sql.DB) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, plain)
			return errors.Join(err, tx.Rollback())
		}, 0, false},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			config, err := pgx.ParseConfig(proxy.URL())
			must(t, err)
			db := stdlib.OpenDB(*config)
			defer db.Close()
			must(t, db.PingContext(t.Context())) // a connection that was used before is the one that is lost
			proxy.CutReply(matching(`INSERT INTO business`))
			err = way.run(t.Context(), db)
			rows := way.rows
			if way.misjudged && misjudges(t) {
				rows = 2
			}
			if (err == nil) != (rows == 2) || proxy.Sprung() != 1 {
				t.Errorf("with pgx v5.%d the reply was cut %d times, and Exec returned %v; "+
					"want once, and no error only if it is repeated",
					driverMinor(t), proxy.Sprung(), err)
			}
			s.wantRows(t, "paid", rows, "an Exec outside of our transactions")
		})
	}
}

// TestDriverRepeatsNothingOfOurs: inside of a transaction of the store, a statement whose reply was lost is not
// repeated: the transaction is gone with its connection, and nothing was executed.
func TestDriverRepeatsNothingOfOurs(t *testing.T) {
	t.Parallel()
	const plain, withArgument = `INSERT INTO business (value) VALUES ('paid')`, `INSERT INTO business (value) VALUES ($1)`
	statements := map[string]func(ctx context.Context) error{
		"pgx, no arguments": func(ctx context.Context) error {
			_, err := postgres.Tx(ctx).Exec(ctx, plain)
			return err
		},
		"pgx, an argument": func(ctx context.Context) error {
			_, err := postgres.Tx(ctx).Exec(ctx, withArgument, "paid")
			return err
		},
		"database/sql, no arguments": func(ctx context.Context) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, plain)
			return err
		},
		"database/sql, an argument": func(ctx context.Context) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, withArgument, "paid")
			return err
		},
		"database/sql, prepared": func(ctx context.Context) error {
			stmt, err := onceward.Tx(ctx).PrepareContext(ctx, plain)
			if err != nil {
				return err
			}
			defer stmt.Close()
			_, err = stmt.ExecContext(ctx)
			return err
		},
		"database/sql, a query": func(ctx context.Context) error {
			return onceward.Tx(ctx).QueryRowContext(ctx, plain+` RETURNING number`).Scan(new(int64))
		},
	}
	for name, pay := range statements {
		for _, h := range someHandles {
			t.Run(name+" on "+h.name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, servers.Postgres(t))
				proxy := servers.NewProxy(t, s.url)
				store := s.store(t, h, proxy.URL())
				d := &driven{store: store, proxy: proxy, pay: pay}
				d.transact(t)
				s.wantRows(t, "paid", 1, "I1: a transactional handler")
				d.inTx(t)
				s.wantRows(t, "paid", 2, "I1: InTx")
			})
		}
	}
}

// driven loses the reply to a statement of a transaction, and then runs it once more in peace.
type driven struct {
	store *postgres.Store
	proxy *servers.Proxy
	pay   func(ctx context.Context) error
	cut   int
}

// lose loses the next reply to a payment.
func (d *driven) lose() {
	d.cut++
	d.proxy.CutReply(matching(`INSERT INTO business`))
}

// check checks that one run of the work met an error, and that nothing came of it.
func (d *driven) check(t *testing.T, runs int, payErr, err error) {
	t.Helper()
	if runs != 1 || payErr == nil || d.proxy.Sprung() != d.cut {
		t.Errorf("I1: the work ran %d times and got %v, with %d replies lost; want one run, an error, and %d",
			runs, payErr, d.proxy.Sprung(), d.cut)
	}
	wantNotExecuted(t, err, "I4: the connection was lost with the reply")
}

func (d *driven) transact(t *testing.T) {
	t.Helper()
	runs, payErr := 0, error(nil)
	work := func(ctx context.Context, _ store.Verdict) store.Settlement {
		runs++
		if payErr = d.pay(ctx); payErr != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: store.Completion{
			Response: store.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "run %d", runs)},
		}}
	}
	d.lose()
	_, err := d.store.Transact(t.Context(), booking("key"), work)
	d.check(t, runs, payErr, err)
	var v store.Verdict
	await.That(t, "the server has noticed that the connection is gone", func() bool {
		v, err = d.store.Transact(t.Context(), booking("key"), work)
		return v.Decision != store.DecisionInProgress
	})
	wantVerdict(t, v, err, store.DecisionExecute, 2, "the retry runs afresh")
}

func (d *driven) inTx(t *testing.T) {
	t.Helper()
	runs, payErr := 0, error(nil)
	work := func(ctx context.Context) error {
		runs++
		payErr = d.pay(ctx)
		return payErr
	}
	d.lose()
	err := d.store.InTx(t.Context(), work)
	d.check(t, runs, payErr, err)
	if errors.Is(err, store.ErrWorkRefused) {
		t.Errorf("I4: a lost connection is no refusal, but got %v", err)
	}
	must(t, d.store.InTx(t.Context(), work))
}

// TestDiscardedStatements discards what was prepared on the connections of the pool, as a pool's hook may.
// The next transaction takes another connection.
func TestDiscardedStatements(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	pool := openAdmin(t, url+"&pool_max_conns=1&default_query_exec_mode=cache_statement")
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	transacted(t, s, "first", nothing)
	_, err = pool.Exec(t.Context(), `DEALLOCATE ALL`)
	must(t, err)
	transacted(t, s, "after it was discarded", nothing)
	_, err = s.Transact(t.Context(), reservation("discards"), committing("discards", func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `DEALLOCATE ALL`)
		return err
	}))
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the transaction whose own statements were discarded got %v, want ErrUnavailable", err)
	}
	wantState(t, s, "discards", store.StateNone, "I4: nothing was executed")
	transacted(t, s, "second", nothing)
	wantReplay(t, s, "second", "second", "I3")
}
