package mysql_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(watchdog.Over(m))) }

var quiet = mysql.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

// openStore opens a store that is closed with the test.
func openStore(t testing.TB, url string, options ...mysql.Option) *mysql.Store {
	t.Helper()
	s, err := mysql.Open(t.Context(), url, append(options, quiet)...)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// instance opens a store for the suite, whose clock stands still until the suite moves it.
func instance(t testing.TB, among *grounds, options ...mysql.Option) storetest.Instance {
	t.Helper()
	i, s := instanceOnTheRealClock(t, among, options...)
	var clock atomic.Int64
	clock.Store(firstMoment)
	s().SetTime(firstMoment)
	i.Advance = func(d time.Duration) { s().SetTime(clock.Add(d.Microseconds())) }
	lossy := i.Lossy
	i.Lossy = func(t testing.TB) storetest.Lossy {
		l := lossy(t)
		l.Store.(*mysql.Store).SetTime(clock.Load())
		return l
	}
	reopen := i.Reopen
	i.Reopen = func(t testing.TB) store.Store {
		opened := reopen(t)
		s().SetTime(clock.Load())
		return opened
	}
	return i
}

// instanceOnTheRealClock opens a store for the suite. The function returns the store, which Reopen changes.
func instanceOnTheRealClock(
	t testing.TB, among *grounds, options ...mysql.Option,
) (storetest.Instance, func() *mysql.Store) {
	t.Helper()
	ground := among.take(t)
	url := ground.url + "?sql_mode='ANSI'" + ground.parameters
	s := openStore(t, url, options...)
	return storetest.Instance{
		Store:    s,
		Business: business(ground),
		Reopen: func(t testing.TB) store.Store {
			must(t, s.Close())
			s = openStore(t, url, options...)
			return s
		},
		Lossy: func(t testing.TB) storetest.Lossy {
			proxy := servers.NewMySQLProxy(t, otherHosts.ReplaceAllString(ground.url, ""))
			return storetest.Lossy{
				Store: openStore(t, proxy.URL()+"?sql_mode='ANSI'"+ground.parameters),
				LoseCommit: func(reply bool) (lost func(context.Context) error, restore func()) {
					return proxy.Lose(commits, reply)
				},
			}
		},
	}, func() *mysql.Store { return s }
}

// otherHosts are the hosts of a URL after the first one.
var otherHosts = regexp.MustCompile(`,[^/]*`)

// business is the table of the application. Sessions of the application say what the suite writes: double quotes for
// names, and || to join texts.
func business(g *ground) *storetest.Business {
	return &storetest.Business{
		Insert: func(ctx context.Context, value string) error {
			_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business VALUES (?)`, value)
			return err
		},
		Count: func(value string) (n int) {
			_ = g.admin.QueryRow(`SELECT COUNT(*) FROM business WHERE value = ?`, value).Scan(&n)
			return n
		},
		Define: func(statement string) error {
			_, err := g.admin.Exec(statement)
			return err
		},
		Pool: g.admin,
		Slow: `DO SLEEP(60)`,
		Conflicts: map[string]string{
			"SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213": "1213", "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205": "1205",
			"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1020": "1020",
		},
		NoWait: `SELECT value FROM business FOR UPDATE NOWAIT`,
		Enders: []string{
			"BEGIN", "START TRANSACTION", "SET autocommit = 1", "CREATE TABLE more (i INT)", "DROP TABLE IF EXISTS more",
			"TRUNCATE TABLE more", "/*! COMMIT */", "EXECUTE IMMEDIATE 'COMMIT'", "EXECUTE IMMEDIATE 'ROLLBACK'",
			"EXECUTE IMMEDIATE 'CREATE TABLE IF NOT EXISTS more (i INT)'",
		},
	}
}

// TestStore runs all of the suite.
func TestStore(t *testing.T) {
	t.Parallel()
	among := &grounds{run: t, url: mariadb}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Open:     func(t testing.TB) storetest.Instance { return instance(t, among) },
	})
}

// TestStoreOnTheRealClock runs what depends on the clock as it runs in production; `make test-all` runs all.
func TestStoreOnTheRealClock(t *testing.T) {
	t.Parallel()
	among := &grounds{run: t, url: mariadb}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Groups:   servers.UnlessAllStores("Lost", "Waiter", "Reaper"),
		Open: func(t testing.TB) storetest.Instance {
			i, _ := instanceOnTheRealClock(t, among)
			return i
		},
	})
}

// TestStoreAtOtherDefaults runs what depends on the level of the handlers' connections, which is that of their URL or
// their server, at those that MySQL does not have as its default.
func TestStoreAtOtherDefaults(t *testing.T) {
	t.Parallel()
	for _, level := range nightly.Either([]string{"READ-COMMITTED", "SERIALIZABLE"}, []string{"SERIALIZABLE"}) {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			among := &grounds{run: t, url: mariadb, parameters: "&tx_isolation='" + level + "'"}
			storetest.Run(t, storetest.Harness{
				Features: storetest.Features{ConcurrentTx: true},
				Groups: servers.UnlessAllStores("Isolation", "Transactor", "TransactorRaces", "LostCommit", "Checkpointer",
					"CheckpointerRaces", "OutboxTransactions", "OutboxAnswer", "OutboxFinishTx", "InboxTransactions", "Natural"),
				Open: func(t testing.TB) storetest.Instance { return instance(t, among) },
			})
		})
	}
}
