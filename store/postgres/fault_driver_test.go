package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward/internal/servicetest"
)

// These tests are about pgx alone: they say which of its versions may be used. Onceward believes no error of a COMMIT, but
// the application's own statements go through the same driver, and so do those that a pool or database/sql repeats.

// lostReply has statements of plain pgx run of which one lands, and its reply does not.
func lostReply(t *testing.T, run func(conn *pgx.Conn) error) (s *site, err error) {
	t.Helper()
	s = newSite(t, servicetest.Postgres(t))
	proxy := servicetest.NewProxy(t, s.url)
	conn := connect(t, proxy.URL())
	proxy.CutReply(isCommit)
	err = run(conn)
	if n := proxy.Sprung(); n != 1 {
		t.Fatalf("%d answers were cut, want 1", n)
	}
	return s, err
}

// TestDriverDoesNotCallALostCommitSafe would fail with pgx v5.9.0 to v5.11.0.
func TestDriverDoesNotCallALostCommitSafe(t *testing.T) {
	t.Parallel()
	const pay = `INSERT INTO business (value) VALUES ('paid')`
	ways := map[string]func(t *testing.T, conn *pgx.Conn) error{
		"Tx.Commit": func(t *testing.T, conn *pgx.Conn) error {
			tx, err := conn.Begin(t.Context())
			must(t, err)
			_, err = tx.Exec(t.Context(), pay)
			must(t, err)
			return tx.Commit(t.Context())
		},
		"Exec": func(t *testing.T, conn *pgx.Conn) error {
			_, err := conn.Exec(t.Context(), "BEGIN; "+pay+"; COMMIT")
			return err
		},
		"SendBatch": func(t *testing.T, conn *pgx.Conn) error {
			batch := &pgx.Batch{}
			batch.Queue(`BEGIN`)
			batch.Queue(`INSERT INTO business (value) VALUES ($1)`, "paid")
			batch.Queue(`COMMIT`)
			return conn.SendBatch(t.Context(), batch).Close()
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, err := lostReply(t, func(conn *pgx.Conn) error { return way(t, conn) })
			if err == nil || pgconn.SafeToRetry(err) {
				t.Errorf("the reply to COMMIT was lost: got %v, safe to retry %t; want an error that is not", err, pgconn.SafeToRetry(err))
			}
			s.wantRows(t, "paid", 1, "the commit had landed")
		})
	}
}

// TestDriverDoesNotRepeatAnExec would fail with pgx v5.9.0 to v5.11.0: database/sql repeats what the driver calls safe.
func TestDriverDoesNotRepeatAnExec(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]any{"without arguments": nil, "with an argument": {"paid"}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servicetest.Postgres(t))
			proxy := servicetest.NewProxy(t, s.url)
			config, err := pgx.ParseConfig(proxy.URL())
			must(t, err)
			db := stdlib.OpenDB(*config)
			defer db.Close()
			must(t, db.PingContext(t.Context())) // a connection that was used before is the one that is lost
			statement := `INSERT INTO business (value) VALUES ('paid')`
			if len(args) > 0 {
				statement = `INSERT INTO business (value) VALUES ($1)`
			}
			proxy.CutReply(matching(`INSERT INTO business`))
			_, err = db.ExecContext(t.Context(), statement, args...)
			if err == nil || proxy.Sprung() != 1 {
				t.Errorf("the reply was cut %d times, and Exec returned %v, want once and an error", proxy.Sprung(), err)
			}
			s.wantRows(t, "paid", 1, "it was executed once")
		})
	}
}
