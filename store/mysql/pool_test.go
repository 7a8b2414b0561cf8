package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestHandlersThatAskTheirPool: handlers read through the pool of four that holds their transactions, which many services
// do. 20 of 20 different keys are answered, twice: transactions leave a connection for what their handlers ask beside
// them. Through the handle of this package they ask for no second connection.
func TestHandlersThatAskTheirPool(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	db := openAdmin(t, url)
	exec(t, db, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	s, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	db.SetMaxOpenConns(4) // which is as good before it
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("all"), Secret: []byte("0123456789abcdef"), StoreTimeout: time.Minute,
	})
	must(t, err)
	const count = `SELECT COUNT(*) FROM business`
	for through, read := range map[string]func(context.Context) error{
		"pool":   func(ctx context.Context) error { return db.QueryRowContext(ctx, count).Scan(new(int)) },
		"handle": func(ctx context.Context) error { return mysql.DB(db).QueryRowContext(ctx, count).Scan(new(int)) },
		"transaction": func(ctx context.Context) error {
			return s.InTx(ctx, func(context.Context) error { return nil })
		},
	} {
		handler := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := errors.Join(insert(r.Context(), r.URL.Path), read(r.Context())); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}, onceward.Transactional(), onceward.OperationName("read"))
		for round := range 2 {
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("/%s/%d/%d", through, round, i), strings.NewReader(""))
					r.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d-%d", through, round, i))
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					if w.Code != http.StatusOK {
						t.Errorf("through the %s: key %d of round %d was answered %d: %s", through, i, round, w.Code, w.Body)
					}
				})
			}
			all.Wait()
		}
	}
}

// TestHandleOfAnotherServer: a *sql.DB and a URL that lead to different servers are refused, also where both servers have
// the tables under the same name: the records of transactions would be on one, and all others on the other.
func TestHandleOfAnotherServer(t *testing.T) {
	t.Parallel()
	first, second := servers.NewMariaDB(t), servers.MariaDB(t)
	url := second.DatabaseURL(t)
	name := url[strings.LastIndex(url, "/")+1:]
	must(t, first.Exec(t.Context(), "CREATE DATABASE `"+name+"`"))
	elsewhere := "mysql://" + first.DSN(name)
	elsewhere = strings.NewReplacer("tcp(", "", ")", "").Replace(elsewhere)
	db := openAdmin(t, elsewhere)
	for when, prepare := range map[string]func(){
		"without tables": func() {}, "with tables": func() { openStore(t, elsewhere) },
	} {
		prepare()
		s, err := mysql.New(t.Context(), db, url, quiet)
		if err == nil {
			must(t, s.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "one server") {
			t.Errorf("a handle of another server, %s: %v, want a refusal that says why", when, err)
		}
	}
	s, err := mysql.New(t.Context(), openAdmin(t, url), url, quiet)
	must(t, err)
	must(t, s.Close())
	if rows := number(t, openAdmin(t, url), `SELECT COUNT(*) FROM onceward_lock`); rows != 0 {
		t.Errorf("the proof has left %d rows", rows)
	}
}

// TestHandleOfAReplica: a *sql.DB that leads to a replica which takes writes is refused, although the replica has soon what
// was written at the URL.
func TestHandleOfAReplica(t *testing.T) {
	t.Parallel()
	primary := servers.NewMariaDB(t, "log-bin=primary", "server-id=1", "binlog-format=ROW", "sync-binlog=1")
	url := primary.DatabaseURL(t)
	replica := servers.NewMariaDB(t, "server-id=2")
	host, port, _ := strings.Cut(primary.Addr(), ":")
	must(t, replica.Exec(t.Context(), fmt.Sprintf(`CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s,
		MASTER_USER = 'root', MASTER_USE_GTID = slave_pos; START SLAVE`, host, port)))
	openStore(t, url) // makes the tables
	elsewhere := strings.NewReplacer("tcp(", "", ")", "").Replace("mysql://" + replica.DSN(url[strings.LastIndex(url, "/")+1:]))
	db := openAdmin(t, elsewhere)
	await.That(t, "the replica has the tables", func() bool {
		_, err := db.Exec(`SELECT COUNT(*) FROM onceward_lock`)
		return err == nil
	})
	s, err := mysql.New(t.Context(), db, url, quiet)
	if err == nil {
		must(t, s.Close())
	}
	if err == nil || !strings.Contains(err.Error(), "one server") {
		t.Errorf("a handle of a replica: %v, want a refusal that says why", err)
	}
}

// TestHostileParameters: session variables with which the store cannot work are refused, in the URL and in the handle of
// the service, by an error that names them.
func TestHostileParameters(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	for parameter, name := range map[string]string{
		"tx_read_only=1": "tx_read_only", "sql_select_limit=1": "sql_select_limit", "timestamp=1700000000": "timestamp",
	} {
		hostile := url + "?" + parameter
		for where, open := range map[string]func() (*mysql.Store, error){
			"the URL": func() (*mysql.Store, error) { return mysql.Open(t.Context(), hostile, quiet) },
			"the handle": func() (*mysql.Store, error) {
				return mysql.New(t.Context(), openAdmin(t, url, "&"+parameter), url, quiet)
			},
		} {
			s, err := open()
			if err == nil {
				must(t, s.Close())
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s in %s: %v, want a refusal that names it", parameter, where, err)
			}
		}
	}
}

// TestPoolIsExhausted: a transaction for which there is no connection says so, with a pool of the service's and with the
// store's own.
func TestPoolIsExhausted(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	db := openAdmin(t, url)
	db.SetMaxOpenConns(1)
	sharing, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, sharing.Close()) })
	for name, s := range map[string]*mysql.Store{
		"of the service's": sharing, "of the store's": openStore(t, url, mysql.WithConnections(1)),
	} {
		err := s.InTx(t.Context(), func(context.Context) error {
			const says = "the pool is exhausted"
			// A busy machine may not let a transaction ask for its connection within the first of these times.
			for within := 50 * time.Millisecond; ; within *= 4 {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				err := s.InTx(ctx, func(context.Context) error { return nil })
				cancel()
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("a pool %s: %v, want ErrUnavailable", name, err)
				}
				if err == nil || strings.Contains(err.Error(), says) {
					return nil
				}
				if within > await.Limit/4 {
					t.Errorf("a pool %s: %v, want an error that says %q", name, err, says)
					return nil
				}
			}
		})
		must(t, err)
	}
}

// TestOwnPoolIsExhausted: a call for which the store's own pool has no connection says so.
func TestOwnPoolIsExhausted(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	s := openStore(t, url, mysql.WithConnections(1))
	conn, err := openAdmin(t, url).Conn(t.Context())
	must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), `LOCK TABLES onceward_record WRITE`)
	must(t, err)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
		defer cancel()
		_, err := s.Reserve(ctx, reservation("first"))
		done <- err
	}()
	await.That(t, "the only connection waits", func() bool {
		return number(t, openAdmin(t, url), `SELECT COUNT(*) FROM information_schema.processlist
			WHERE state LIKE 'Waiting for table%' AND db = DATABASE()`) == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Reserve(ctx, reservation("second"))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "the pool is exhausted") {
		t.Errorf("%v, want an error that says that the pool is exhausted", err)
	}
	_, err = conn.ExecContext(t.Context(), `UNLOCK TABLES`)
	must(t, err)
	must(t, await.Value(t, "the first call", done))
}

// TestHandle: what goes through the handle of a pool is part of the transaction of the context, and of none where there is
// none. What a handler begins is a savepoint.
func TestHandle(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	db := openAdmin(t, url)
	exec(t, db, `CREATE TABLE business (value VARCHAR(255) NOT NULL) ENGINE = InnoDB`)
	s, err := mysql.New(t.Context(), db, url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	const insert = `INSERT INTO business VALUES (?)`
	rows := func(value string) int { return number(t, db, `SELECT COUNT(*) FROM business WHERE value = ?`, value) }
	errUndo := errors.New("undo")
	for name, write := range map[string]func(ctx context.Context, value string) error{
		"a statement": func(ctx context.Context, value string) error {
			_, err := mysql.DB(db).ExecContext(ctx, insert, value)
			return err
		},
		"begun": func(ctx context.Context, value string) error {
			undone, err := mysql.DB(db).BeginTx(ctx, nil)
			must(t, err)
			_, err = undone.ExecContext(ctx, insert, value)
			must(t, errors.Join(err, undone.Rollback()))
			tx, err := mysql.DB(db).BeginTx(ctx, nil)
			must(t, err)
			_, err = tx.ExecContext(ctx, insert, value)
			return errors.Join(err, tx.Commit())
		},
	} {
		must(t, write(t.Context(), name+" alone"))
		err := s.InTx(t.Context(), func(ctx context.Context) error {
			must(t, write(ctx, name+" undone"))
			return errUndo
		})
		if err != errUndo {
			t.Errorf("%s: %v", name, err)
		}
		must(t, s.InTx(t.Context(), func(ctx context.Context) error { return write(ctx, name+" kept") }))
		if rows(name+" alone") != 1 || rows(name+" undone") != 0 || rows(name+" kept") != 1 {
			t.Errorf("%s: %d rows without a transaction, %d of one undone, %d of one committed; want 1, 0, 1", name,
				rows(name+" alone"), rows(name+" undone"), rows(name+" kept"))
		}
	}
}
