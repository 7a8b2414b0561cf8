package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/storetest"
)

// TestStoreOnAPoolOfTheApplication runs transactions on a *sql.DB that takes one statement at a time, and prepares
// those with arguments.
func TestStoreOnAPoolOfTheApplication(t *testing.T) {
	t.Parallel()
	among := &grounds{run: t, url: mariadb}
	storetest.Run(t, storetest.Harness{
		Features: storetest.Features{ConcurrentTx: true},
		Groups:   servers.UnlessAllStores("Isolation", "Transactor", "TransactorLeft", "TransactorOwnership", "OutboxAnswer"),
		Open: func(t testing.TB) storetest.Instance {
			ground := among.take(t)
			s, err := mysql.New(t.Context(), ground.admin, ground.url, quiet)
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			return storetest.Instance{Store: s, Business: business(ground)}
		},
	})
}

// TestBorrowedConnection: a connection of the application is given back as it was.
func TestBorrowedConnection(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	db := openAdmin(t, url)
	db.SetMaxOpenConns(1)
	exec(t, db, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	exec(t, db, `SET SESSION wait_timeout = 1234, innodb_lock_wait_timeout = 77`)
	s, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	defer s.Close()
	for key, action := range map[string]store.TxAction{
		"committed": store.TxCommit, "undone": store.TxRollback, "answered": store.TxCommitAnswer,
	} {
		transacted(t, s, key, func(ctx context.Context, _ store.Verdict) store.Settlement {
			must(t, insert(ctx, key))
			return settled(action, key)
		}, store.DecisionExecute, key)
	}
	transacted(t, s, "committed", refusing(t, "I1"), store.DecisionReplay, "I1")
	var state string
	must(t, db.QueryRow(`SELECT CONCAT_WS(' ', @@autocommit + 0, @@wait_timeout, @@innodb_lock_wait_timeout,
		@@in_transaction)`).Scan(&state))
	if state != "1 1234 77 0" {
		t.Errorf("the connection came back as %q", state)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM business`); n != 1 {
		t.Errorf("E1: %d rows, want that of what was committed", n)
	}
}

// TestDuplicateOnAnotherNode: a transaction in flight is seen at once by another process, and it is waited for.
func TestDuplicateOnAnotherNode(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	first, second := openStore(t, url), openStore(t, url)
	exec(t, openAdmin(t, url), `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	waited := make(chan error, 1)
	transacted(t, first, "key", func(ctx context.Context, v store.Verdict) store.Settlement {
		// One that waited for the lock would be answered after a second each time.
		await.That(t, "E1: a duplicate is answered at once", func() bool {
			began := time.Now()
			transacted(t, second, "key", refusing(t, "S1"), store.DecisionInProgress, "E1: a duplicate in flight")
			return time.Since(began) < time.Second
		})
		go func() { waited <- second.Wait(context.WithoutCancel(ctx), idOf("key"), 0) }()
		select {
		case err := <-waited:
			t.Errorf("section 6: a wait for a transaction of another process ended before it: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		return inserting(t, "key")(ctx, v)
	}, store.DecisionExecute, "E1")
	must(t, await.Value(t, "the end of the wait", waited))
	transacted(t, second, "key", refusing(t, "I1"), store.DecisionReplay, "I1")
}

// TestDeadlockInTheWork: of two handlers that lock two rows in opposite order one is undone by the server, and run
// again. One that ignores it cannot go on.
func TestDeadlockInTheWork(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	exec(t, admin, `CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL) ENGINE = InnoDB`)
	exec(t, admin, `INSERT INTO accounts VALUES (1, 0), (2, 0)`)
	var both, done sync.WaitGroup
	both.Add(2)
	for key, order := range map[string][]int{"up": {1, 2}, "down": {2, 1}} {
		done.Go(func() {
			first := true
			_, err := s.Transact(t.Context(), reservation(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
				for i, account := range order {
					_, err := txOf(ctx).ExecContext(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = ?`, account)
					if err != nil {
						if err := insert(ctx, "ignored it"); err == nil {
							t.Error("E1: a handler went on in a transaction that the server had undone")
						}
					}
					if first && i == 0 {
						first = false
						both.Done()
						both.Wait()
					}
				}
				return settled(store.TxCommit, key)
			})
			if err != nil {
				t.Errorf("scenario 14: %s: %v", key, err)
			}
		})
	}
	done.Wait()
	if got := strings.Join(column(t, admin, `SELECT balance FROM accounts ORDER BY id`), " "); got != "2 2" {
		t.Errorf("scenario 14: the balances are %s, want 2 2", got)
	}
	if n := number(t, admin, `SELECT COUNT(*) FROM business`); n != 0 {
		t.Errorf("E1: %d rows of a transaction that was undone", n)
	}
}

// TestNodeThatStops: a node that stops in mid-transaction loses its lock when the server has had nothing of it for
// longer than the lease.
func TestNodeThatStops(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	stopped, other := openStore(t, url), openStore(t, url)
	exec(t, openAdmin(t, url), `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	idle := make(chan int, 1)
	transacted(t, stopped, "key", func(ctx context.Context, _ store.Verdict) store.Settlement {
		var seconds int
		must(t, txOf(ctx).QueryRowContext(ctx, `SELECT @@wait_timeout`).Scan(&seconds))
		idle <- seconds
		return settled(store.TxRollback, "")
	}, store.DecisionExecute, "E1")
	if seconds := <-idle; seconds < 60 || seconds > 125 {
		t.Errorf("E1: with a lease of a minute an idle transaction lives for %d s", seconds)
	}
	transacted(t, other, "key", inserting(t, "key"), store.DecisionExecute, "E1")
}

// TestSeveralStatements: a text that was put together from what a client sent cannot run a second statement, though the
// store's connections could.
func TestSeveralStatements(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s, admin := openStore(t, url), openAdmin(t, url)
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	for text, allowed := range map[string]bool{
		`INSERT INTO business VALUES ('a;b')`:                             true,
		"INSERT INTO business VALUES ('c') ; -- the end":                  true,
		`INSERT INTO business VALUES ("d;") /* ; */ ;`:                    true,
		`INSERT INTO business VALUES ('e'); DELETE FROM business`:         false,
		`INSERT INTO business VALUES ('f\'); DELETE FROM business; -- ')`: false,
		`INSERT INTO business VALUES ('g'); COMMIT`:                       false,
	} {
		_, err := s.Transact(t.Context(), reservation(text), func(ctx context.Context, _ store.Verdict) store.Settlement {
			if _, err := txOf(ctx).ExecContext(ctx, text); (err == nil) != allowed {
				t.Errorf("%s: %v", text, err)
			}
			return settled(store.TxCommit, "")
		})
		must(t, err)
	}
	if n := number(t, admin, `SELECT COUNT(*) FROM business`); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// TestKilledServer: the server is killed while a transaction is under way, and started again. Nothing of it is there,
// and the retry executes.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	server, err := servers.StartMariaDB(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	s := openStore(t, server.URL())
	admin := openAdmin(t, server.URL())
	exec(t, admin, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	_, err = s.Transact(t.Context(), reservation("key"), func(ctx context.Context, v store.Verdict) store.Settlement {
		must(t, insert(ctx, "key"))
		must(t, server.Kill())
		must(t, server.Restart())
		return settled(store.TxCommit, "key")
	})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("I4: %v, want ErrUnavailable: nothing was executed", err)
	}
	wantWhole(t, s, reopened(t, server.URL()), "key", err, "I4: a server that was killed")
}

// reopened is a pool that has not heard of what died.
func reopened(t testing.TB, url string) *sql.DB {
	t.Helper()
	return openAdmin(t, url)
}

// TestLockWaitOfHandlers: how long a statement of a handler waits for a row is what the service has set, on connections of
// its own and on those that the store opens, also after a transaction that was undone.
func TestLockWaitOfHandlers(t *testing.T) {
	t.Parallel()
	url := mariadb(t) + "?innodb_lock_wait_timeout=7"
	configs, err := mysql.DriverConfigs(url)
	must(t, err)
	connector, err := driver.NewConnector(configs[0])
	must(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	borrowing, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, borrowing.Close()) })
	for name, s := range map[string]*mysql.Store{
		"a pool of the service's": borrowing, "a pool of the store's": openStore(t, url, mysql.WithConnections(1)),
	} {
		for run, action := range []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer, store.TxCommit} {
			transacted(t, s, fmt.Sprint(name, run), func(ctx context.Context, _ store.Verdict) store.Settlement {
				var wait int
				must(t, txOf(ctx).QueryRowContext(ctx, `SELECT @@innodb_lock_wait_timeout`).Scan(&wait))
				if wait != 7 {
					t.Errorf("%s: run %d waits %d s for a row, want the 7 s of the URL", name, run, wait)
				}
				return settled(action, "done")
			}, store.DecisionExecute, "E1")
		}
	}
	var wait int
	must(t, db.QueryRowContext(t.Context(), `SELECT @@innodb_lock_wait_timeout`).Scan(&wait))
	if wait != 7 {
		t.Errorf("the service's connection waits %d s for a row afterwards, want 7 s", wait)
	}
}

// TestRowLocksOfANodeThatStops: the server ends the transaction of a node that has stopped, and with it the locks of rows
// that it holds, when it has had nothing of it for longer than the lease: on connections that the store has opened and on
// those of the service, whatever the server has as its own bounds.
func TestRowLocksOfANodeThatStops(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	admin := openAdmin(t, url)
	exec(t, admin, `CREATE TABLE place (name VARBINARY(20) PRIMARY KEY)`)
	exec(t, admin, `INSERT INTO place VALUES ('opened'), ('borrowed')`)
	borrowing, err := mysql.New(t.Context(), openAdmin(t, url), url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, borrowing.Close()) })
	// stop has a node stop in a step of this lease, and reports whether the step had its row by then.
	stop := func(s *mysql.Store, name string, lease time.Duration) (held bool, err error) {
		v, err := s.Reserve(t.Context(), reservation(name+lease.String()))
		if err != nil {
			return false, err
		}
		claim := store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
		err = s.CheckpointTx(t.Context(), claim, lease, func(ctx context.Context) (p store.Checkpoint, err error) {
			const lock = `SELECT name FROM place WHERE name = ? FOR UPDATE`
			var row string
			if err := txOf(ctx).QueryRowContext(ctx, lock, name).Scan(&row); err != nil {
				return p, err
			}
			held = true
			await.That(t, "the row is free, though its holder does nothing", func() bool {
				return admin.QueryRowContext(t.Context(), lock, name).Scan(&row) == nil
			})
			return store.Checkpoint{Point: "late"}, nil
		})
		return held, err
	}
	var both sync.WaitGroup
	for name, s := range map[string]*mysql.Store{"opened": openStore(t, url), "borrowed": borrowing} {
		both.Go(func() {
			var held bool
			var err error
			// A busy machine may not bring a step to its row within the first lease.
			for _, lease := range []time.Duration{time.Second, 4 * time.Second, 16 * time.Second} {
				if held, err = stop(s, name, lease); held {
					break
				}
			}
			if !held || !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("%s: a step that held its row (%t), and whose transaction the server ended: %v", name, held, err)
			}
		})
	}
	both.Wait()
}
