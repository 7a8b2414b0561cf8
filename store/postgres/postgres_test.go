package postgres_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

var quiet = postgres.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

// patient makes a store wait for its server for as long as a test does.
var patient = postgres.Looking(await.Limit)

// handle is a kind of handle by which a store is opened on a schema. Its stores wait for locks of records however long a
// neighbour holds them, unless a test has another bound.
type handle struct {
	name string
	open func(t testing.TB, url string, options ...postgres.Option) (*postgres.Store, func())
	// insert adds a business row in the way that goes with the handle.
	insert func(ctx context.Context, value string) error
}

var (
	pgxHandle = handle{"pgx", openPool, insertPgx}
	sqlHandle = handle{"database/sql", openSQL, insertSQL}
)

func openPool(t testing.TB, url string, options ...postgres.Option) (*postgres.Store, func()) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	store, err := postgres.New(t.Context(), pool, unhurried(options)...)
	must(t, err)
	return store, pool.Close
}

func openSQL(t testing.TB, url string, options ...postgres.Option) (*postgres.Store, func()) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	must(t, err)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	store, err := postgres.NewSQL(t.Context(), db, unhurried(options)...)
	must(t, err)
	return store, func() { _ = db.Close() }
}

// unhurried are the options of the stores of handles. Those of a test come after them.
func unhurried(options []postgres.Option) []postgres.Option {
	return append([]postgres.Option{quiet, patient, postgres.LockTimeout("1h")}, options...)
}

func insertPgx(ctx context.Context, value string) error {
	_, err := postgres.Tx(ctx).Exec(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
	return err
}

func insertSQL(ctx context.Context, value string) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect opens one connection that is closed with the test.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// instance opens a store for the suite.
func (h handle) instance(t testing.TB, among *grounds) storetest.Instance {
	t.Helper()
	ground := among.take(t)
	t.Cleanup(func() {
		if t.Failed() {
			ground.shut()
		}
	})
	return storetest.Instance{
		Store: ground.open(t, h),
		Reopen: func(t testing.TB) store.Store {
			ground.shut()
			return ground.open(t, h)
		},
		Business: &storetest.Business{
			Insert: h.insert,
			Count: func(value string) int {
				return number(t, ground.admin, `SELECT count(*) FROM business WHERE value = $1`, value)
			},
			Pool: ground.sql(t),
			Slow: `SELECT pg_sleep(60)`,
			Conflicts: map[string]string{
				"DO $$ BEGIN RAISE 'met' USING ERRCODE = '40001'; END $$": "40001",
				"DO $$ BEGIN RAISE 'met' USING ERRCODE = '40P01'; END $$": "40P01",
				"DO $$ BEGIN RAISE 'met' USING ERRCODE = '55P03'; END $$": "55P03",
			},
			NoWait: `LOCK TABLE business IN ACCESS EXCLUSIVE MODE NOWAIT`,
			Enders: []string{"COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT AND CHAIN", "END", "COMMIT; BEGIN; SELECT 1"},
		},
		Advance: func(d time.Duration) { ground.advance(t, d) },
		Lossy: func(t testing.TB) storetest.Lossy {
			proxy := servers.NewProxy(t, ground.url)
			lossy, closeHandle := h.open(t, proxy.URL())
			t.Cleanup(func() {
				must(t, lossy.Close())
				closeHandle()
			})
			return storetest.Lossy{
				Store: lossy,
				LoseCommit: func(reply bool) (lost func(context.Context) error, restore func()) {
					return proxy.Lose(isCommit, reply)
				},
			}
		},
	}
}

func exec(t testing.TB, pool *pgxpool.Pool, statement string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// conform runs the suite, or groups of it.
func (h handle) conform(t *testing.T, groups ...string) {
	t.Helper()
	h.conformOn(t, onSharedServer, groups...)
}

// conformOn runs the suite, or groups of it, somewhere else than on the server that all tests share.
func (h handle) conformOn(t *testing.T, place func(t, run testing.TB) (url, admin string), groups ...string) {
	t.Helper()
	h.conformAmong(t, &grounds{run: t, place: place}, groups...)
}

func (h handle) conformAmong(t *testing.T, among *grounds, groups ...string) {
	t.Helper()
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Groups:   groups,
		Open:     func(t testing.TB) storetest.Instance { return h.instance(t, among) },
	})
}

func TestStore(t *testing.T) { pgxHandle.conform(t) }

// TestStoreOnDatabaseSQL runs what depends on the handle: the transactions of handlers, and how a call that is given up
// ends. All else is on connections of the store's own, which both handles open in the same way, so TestStore proves it
// for both; `make test-all` runs it on this handle too.
func TestStoreOnDatabaseSQL(t *testing.T) {
	sqlHandle.conform(t, servers.UnlessAllStores("Cancellation", "Isolation", "Transactor", "TransactorLeft",
		"TransactorOwnership", "Checkpointer", "CheckpointerOwnership", "OutboxTransactions", "OutboxAnswer", "OutboxFinishTx",
		"InboxTransactions", "Natural")...)
}
