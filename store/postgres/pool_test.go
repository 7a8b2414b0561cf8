package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// TestHandlersThatAskTheirPool: handlers read through the pool of four that holds their transactions, which many services
// do. 20 of 20 different keys are answered, twice: transactions leave a connection for what their handlers ask beside
// them. Through the handle of this package they ask for no second connection.
func TestHandlersThatAskTheirPool(t *testing.T) {
	const count = `SELECT count(*) FROM business`
	for name, open := range map[string]func(t *testing.T, url string) (*postgres.Store, map[string]func(context.Context) error){
		"pgx": func(t *testing.T, url string) (*postgres.Store, map[string]func(context.Context) error) {
			pool := openAdmin(t, url+"&pool_max_conns=4")
			s, err := postgres.New(t.Context(), pool, quiet)
			must(t, err)
			return s, map[string]func(context.Context) error{
				"pool":   func(ctx context.Context) error { return pool.QueryRow(ctx, count).Scan(new(int)) },
				"handle": func(ctx context.Context) error { return postgres.DB(pool).QueryRow(ctx, count).Scan(new(int)) },
				"transaction": func(ctx context.Context) error {
					return s.InTx(ctx, func(context.Context) error { return nil })
				},
			}
		},
		"database/sql": func(t *testing.T, url string) (*postgres.Store, map[string]func(context.Context) error) {
			config, err := pgx.ParseConfig(url)
			must(t, err)
			db := stdlib.OpenDB(*config)
			t.Cleanup(func() { _ = db.Close() })
			s, err := postgres.NewSQL(t.Context(), db, quiet)
			must(t, err)
			db.SetMaxOpenConns(4) // which is as good before it
			return s, map[string]func(context.Context) error{
				"pool": func(ctx context.Context) error { return db.QueryRowContext(ctx, count).Scan(new(int)) },
				"handle": func(ctx context.Context) error {
					return postgres.SQLDB(db).QueryRowContext(ctx, count).Scan(new(int))
				},
				"transaction": func(ctx context.Context) error {
					return s.InTx(ctx, func(context.Context) error { return nil })
				},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			site := newSite(t, servers.Postgres(t))
			s, reads := open(t, site.url)
			t.Cleanup(func() { must(t, s.Close()) })
			guard, err := onceward.New(s, onceward.Config{
				Scope: onceward.SingleScope("all"), Secret: []byte("0123456789abcdef"),
				StoreTimeout: await.Limit, SettleTimeout: await.Limit,
			})
			must(t, err)
			for through, read := range reads {
				handler := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if err := insertSQL(r.Context(), r.URL.Path); err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					if err := read(r.Context()); err != nil {
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
		})
	}
}

// TestWritesPastTheTransaction: a transactional handler that was committed without having asked for its transaction is
// counted each time and logged once, and one that writes through the transaction or the handle is not.
func TestWritesPastTheTransaction(t *testing.T) {
	site := newSite(t, servers.Postgres(t))
	pool := openAdmin(t, site.url)
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	const insert = `INSERT INTO business (value) VALUES ('past')`
	for name, c := range map[string]struct {
		write func(ctx context.Context) error
		want  int
	}{
		"pool":   {func(ctx context.Context) error { _, err := pool.Exec(ctx, insert); return err }, 2},
		"handle": {func(ctx context.Context) error { _, err := postgres.DB(pool).Exec(ctx, insert); return err }, 0},
		"pgx":    {func(ctx context.Context) error { return insertPgx(ctx, "pgx") }, 0},
		"sql":    {func(ctx context.Context) error { return insertSQL(ctx, "sql") }, 0},
	} {
		var log strings.Builder
		events := 0
		guard, err := onceward.New(s, onceward.Config{
			Scope: onceward.SingleScope("all"), Secret: []byte("0123456789abcdef"),
			Logger: slog.New(slog.NewTextHandler(&log, nil)), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
			Observer: onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
				if _, ok := e.(onceward.UnusedTransactionEvent); ok {
					events++
				}
			}),
		})
		must(t, err)
		handler := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			must(t, c.write(r.Context()))
			w.WriteHeader(http.StatusCreated)
		}, onceward.Transactional(), onceward.OperationName(name))
		for _, key := range []string{"first", "second", "second"} {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(""))
			r.Header.Set("Idempotency-Key", name+key)
			handler.ServeHTTP(httptest.NewRecorder(), r)
		}
		if lines := strings.Count(log.String(), "never asked for its transaction"); events != c.want || lines != min(c.want, 1) {
			t.Errorf("writes through the %s: %d events and %d lines, want %d and %d:\n%s", name, events, lines, c.want,
				min(c.want, 1), &log)
		}
	}
}

// TestSecondConnections: a transactional handler that asks its own pool for another connection is counted each time and logged
// once, also where it gets none; a handler that uses its transaction, the handle or another pool is not. The service's own
// tracer keeps its calls.
func TestSecondConnections(t *testing.T) {
	site := newSite(t, servers.Postgres(t))
	acquired := new(acquireCounter)
	config, err := pgxpool.ParseConfig(site.url + "&pool_max_conns=1")
	must(t, err)
	config.ConnConfig.Tracer = acquired
	postgres.WatchPool(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	config, err = pgxpool.ParseConfig(site.url)
	must(t, err)
	postgres.WatchPool(config)
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(other.Close)
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	for name, c := range map[string]struct {
		ask  func(ctx context.Context) error
		want int
	}{
		"pool": {func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // it gets none
			defer cancel()
			_, _ = pool.Exec(ctx, `SELECT 1`)
			return nil
		}, 2},
		"handle":       {func(ctx context.Context) error { _, err := postgres.DB(pool).Exec(ctx, `SELECT 1`); return err }, 0},
		"transaction":  {func(ctx context.Context) error { return insertPgx(ctx, "pgx") }, 0},
		"another pool": {func(ctx context.Context) error { _, err := other.Exec(ctx, `SELECT 1`); return err }, 0},
	} {
		var log strings.Builder
		events := 0
		guard, err := onceward.New(s, onceward.Config{
			Scope: onceward.SingleScope("all"), Secret: []byte("0123456789abcdef"),
			Logger: slog.New(slog.NewTextHandler(&log, nil)), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
			Observer: onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
				if _, ok := e.(onceward.SecondConnectionEvent); ok {
					events++
				}
			}),
		})
		must(t, err)
		handler := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			must(t, c.ask(r.Context()))
			w.WriteHeader(http.StatusCreated)
		}, onceward.Transactional(), onceward.OperationName(name))
		for _, key := range []string{"first", "second", "second"} {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(""))
			r.Header.Set("Idempotency-Key", strings.ReplaceAll(name, " ", "-")+key)
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != http.StatusCreated {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		if lines := strings.Count(log.String(), "for a second connection"); events != c.want || lines != min(c.want, 1) {
			t.Errorf("asked the %s: %d events and %d lines, want %d and %d:\n%s", name, events, lines, c.want, min(c.want, 1), &log)
		}
	}
	if acquired.Load() == 0 {
		t.Error("the service's own tracer was not called")
	}
}

// acquireCounter is a tracer of a service.
type acquireCounter struct{ atomic.Int64 }

func (c *acquireCounter) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	c.Add(1)
	return ctx
}

func (c *acquireCounter) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {
}

func (c *acquireCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *acquireCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestPoolIsExhausted: a transaction for which there is no connection says so, with a pool of the service's and with the
// store's own.
func TestPoolIsExhausted(t *testing.T) {
	site := newSite(t, servers.Postgres(t))
	url := site.url + "&pool_max_conns=1"
	sharing, err := postgres.New(t.Context(), openAdmin(t, url), quiet)
	must(t, err)
	t.Cleanup(func() { must(t, sharing.Close()) })
	for name, s := range map[string]*postgres.Store{"of the service's": sharing, "of the store's": openStore(t, url)} {
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

// TestHandle: what goes through the handle of a pool is part of the transaction of the context, and of none where there is
// none. What a handler begins is a savepoint.
func TestHandle(t *testing.T) {
	site := newSite(t, servers.Postgres(t))
	pool := openAdmin(t, site.url)
	s, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { must(t, db.Close()) })
	const insert = `INSERT INTO business (value) VALUES ($1)`
	writes := map[string]func(ctx context.Context, value string) error{
		"pgx": func(ctx context.Context, value string) error {
			_, err := postgres.DB(pool).Exec(ctx, insert, value)
			return err
		},
		"pgx, begun": func(ctx context.Context, value string) error {
			tx, err := postgres.DB(pool).BeginTx(ctx, pgx.TxOptions{})
			must(t, err)
			other, err := postgres.DB(pool).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
			if _, guarded := postgres.LookupTx(ctx); guarded != (err != nil) {
				t.Errorf("a transaction at another level, inside of the guard's %t: %v", guarded, err)
			}
			if err == nil {
				must(t, other.Rollback(ctx))
			}
			_, err = tx.Exec(ctx, insert, value)
			must(t, err)
			return tx.Commit(ctx)
		},
		"database/sql": func(ctx context.Context, value string) error {
			_, err := postgres.SQLDB(db).ExecContext(ctx, insert, value)
			return err
		},
		"database/sql, begun": func(ctx context.Context, value string) error {
			undone, err := postgres.SQLDB(db).BeginTx(ctx, nil)
			must(t, err)
			_, err = undone.ExecContext(ctx, insert, value)
			must(t, err)
			must(t, undone.Rollback())
			tx, err := postgres.SQLDB(db).BeginTx(ctx, nil)
			must(t, err)
			_, err = tx.ExecContext(ctx, insert, value)
			must(t, err)
			must(t, tx.Commit())
			if err := tx.Rollback(); err != sql.ErrTxDone {
				t.Errorf("a second end: %v, want sql.ErrTxDone", err)
			}
			return nil
		},
	}
	errUndo := fmt.Errorf("undo")
	for name, write := range writes {
		must(t, write(t.Context(), name+" alone"))
		site.wantRows(t, name+" alone", 1, "without a transaction")
		err := s.InTx(t.Context(), func(ctx context.Context) error {
			must(t, write(ctx, name+" undone"))
			return errUndo
		})
		if err != errUndo {
			t.Errorf("%s: %v", name, err)
		}
		site.wantRows(t, name+" undone", 0, "in a transaction that was undone")
		must(t, s.InTx(t.Context(), func(ctx context.Context) error { return write(ctx, name+" kept") }))
		site.wantRows(t, name+" kept", 1, "in a transaction that was committed")
	}
}

var _ interface {
	Begin(context.Context) (pgx.Tx, error)
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
} = postgres.DB((*pgxpool.Pool)(nil))
