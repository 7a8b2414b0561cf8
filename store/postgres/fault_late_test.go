package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 46: a handler that never returns. When its lease is over its key is free again, on its node and on
// others, whatever it hangs in; and what it does afterwards comes to nothing.

const lateLease = 300 * time.Millisecond

// lateSite is two stores on the same tables, and a pool of one of them that can be looked into.
type lateSite struct {
	*site
	pool        *pgxpool.Pool
	store, next *postgres.Store
}

func newLateSite(t *testing.T) *lateSite {
	t.Helper()
	s := &lateSite{site: newSite(t, servers.Postgres(t))}
	pool, err := pgxpool.New(t.Context(), s.url)
	must(t, err)
	t.Cleanup(pool.Close)
	s.pool = pool
	s.store, err = postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, s.store.Close()) })
	s.next = s.site.store(t, pgxHandle, s.url)
	return s
}

// hanging is how a handler hangs: in a way that only the test, or the end of its transaction, ends.
type hanging func(ctx context.Context, letGo <-chan struct{}) error

// waysToHang are those from which the transaction can be taken back with nothing done.
var waysToHang = map[string]hanging{
	"in its own code": func(_ context.Context, letGo <-chan struct{}) error {
		<-letGo
		return nil
	},
	"with rows open": func(ctx context.Context, letGo <-chan struct{}) error {
		rows, err := postgres.Tx(ctx).Query(ctx, `SELECT i, pg_sleep(i / 100) FROM generate_series(1, 10000) AS i`)
		if err != nil {
			return err
		}
		<-letGo
		for rows.Next() {
		}
		return rows.Err()
	},
	"with rows of database/sql open": func(ctx context.Context, letGo <-chan struct{}) error {
		rows, err := onceward.Tx(ctx).Query(`SELECT i, pg_sleep(i / 100) FROM generate_series(1, 10000) AS i`)
		if err != nil {
			return err
		}
		defer rows.Close()
		<-letGo
		for rows.Next() {
		}
		return rows.Err()
	},
	"with a batch unread": func(ctx context.Context, letGo <-chan struct{}) error {
		batch := &pgx.Batch{}
		batch.Queue(insertRow, "in a batch")
		batch.Queue(`SELECT pg_sleep(60)`)
		results := postgres.Tx(ctx).SendBatch(ctx, batch)
		if _, err := results.Exec(); err != nil {
			return err
		}
		<-letGo
		_, err := results.Query()
		return err
	},
	"in a statement": func(ctx context.Context, _ <-chan struct{}) error {
		_, err := postgres.Tx(ctx).Exec(context.Background(), `SELECT pg_sleep(60)`)
		return err
	},
	"in a statement of database/sql": func(ctx context.Context, _ <-chan struct{}) error {
		_, err := onceward.Tx(ctx).Exec(`SELECT pg_sleep(60)`)
		return err
	},
	"in a source of rows": func(ctx context.Context, letGo <-chan struct{}) error {
		source := pgx.CopyFromFunc(func() ([]any, error) {
			<-letGo
			return []any{"copied"}, errors.New("no more")
		})
		_, err := postgres.Tx(ctx).CopyFrom(context.Background(), pgx.Identifier{"business"}, []string{"value"}, source)
		return err
	},
	"in a large object": func(ctx context.Context, letGo <-chan struct{}) error {
		objects := postgres.Tx(ctx).LargeObjects()
		if _, err := objects.Create(ctx, 0); err != nil {
			return err
		}
		<-letGo
		_, err := objects.Create(ctx, 0)
		return err
	},
}

const insertRow = `INSERT INTO business (value) VALUES ($1)`

// lateHandler is one that writes a row and hangs.
type lateHandler struct {
	letGo   chan struct{}
	release func() // closes letGo
	ended   chan error
	// hung is what it hung in, and wrote what it tried afterwards.
	hung, wrote error
}

// start has a handler hang in one key.
func (s *lateSite) start(t *testing.T, hang hanging) *lateHandler {
	l := &lateHandler{letGo: make(chan struct{}), ended: make(chan error, 1)}
	l.release = sync.OnceFunc(func() { close(l.letGo) })
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.release()
		running.Wait()
	})
	r := booking("key")
	r.Lease = lateLease
	running.Go(func() {
		_, err := s.store.Transact(context.Background(), r, func(ctx context.Context, _ store.Verdict) store.Settlement {
			if err := insertPgx(ctx, "first"); err != nil {
				l.hung = err
				return store.Settlement{Action: store.TxRollback}
			}
			l.hung = hang(ctx, l.letGo)
			<-l.letGo
			l.wrote = errors.Join(insertPgx(ctx, "late"), insertSQL(ctx, "late"))
			done := store.Completion{Response: store.Response{Status: http.StatusCreated}}
			return store.Settlement{Action: store.TxCommit, Completion: done}
		})
		l.ended <- err
	})
	return l
}

// awaitFree waits until the store's own node does not see the transaction any more.
func (s *lateSite) awaitFree(t *testing.T) {
	t.Helper()
	eventually(t, "the transaction is in flight", 20*time.Second, func() bool { return s.store.InFlight(accountID("key")) })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.store.Wait(ctx, accountID("key"), 0); err != nil {
		t.Fatalf("E8: a handler with a lease of %s still locks its key: %v", lateLease, err)
	}
}

// TestHandlerNeverReturns has handlers hang in each way.
func TestHandlerNeverReturns(t *testing.T) {
	t.Parallel()
	for name, hang := range waysToHang {
		for _, elsewhere := range []bool{false, true} {
			retry := name + ", retried on the same node"
			if elsewhere {
				retry = name + ", retried on another"
			}
			t.Run(retry, func(t *testing.T) {
				t.Parallel()
				s := newLateSite(t)
				l := s.start(t, hang)
				s.awaitFree(t)
				st := s.store
				if elsewhere {
					st = s.next
				}
				p := &payer{handle: pgxHandle, value: "second"}
				v, err := st.Transact(t.Context(), booking("key"), p.work)
				wantVerdict(t, v, err, store.DecisionExecute, 1, "E8: no path leaves a key locked past its lease")
				l.release()
				err = await(t, "the end of the handler", l.ended)
				wantNotExecuted(t, err, "E1")
				if !errors.Is(err, store.ErrDeadline) || l.wrote == nil {
					t.Errorf("E5: the late handler wrote (%v) and ended in %v, want errors and ErrDeadline", l.wrote, err)
				}
				for value, n := range map[string]int{"first": 0, "second": 1, "late": 0, "in a batch": 0, "copied": 0} {
					s.wantRows(t, value, n, "I1")
				}
				v, err = s.store.Transact(t.Context(), booking("key"), p.work)
				wantVerdict(t, v, err, store.DecisionReplay, 1, "I3")
				eventually(t, "the connection is back", 10*time.Second, func() bool { return s.pool.Stat().AcquiredConns() == 0 })
			})
		}
	}
}

// TestHandlerCommitsAndNeverReturns: where the handler may have ended the transaction by itself, nobody knows what
// it did, and that is recorded.
func TestHandlerCommitsAndNeverReturns(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]hanging{
		"a raw COMMIT": func(ctx context.Context, letGo <-chan struct{}) error {
			_, err := postgres.Tx(ctx).Exec(ctx, `COMMIT`)
			<-letGo
			return err
		},
		"a COMMIT, and another transaction": func(ctx context.Context, letGo <-chan struct{}) error {
			_, err := postgres.Tx(ctx).Exec(ctx, `COMMIT; BEGIN`)
			<-letGo
			return err
		},
		"a COMMIT in a statement that does not end": func(ctx context.Context, _ <-chan struct{}) error {
			_, err := postgres.Tx(ctx).Exec(context.Background(), `COMMIT; SELECT pg_sleep(60)`)
			return err
		},
		"a COMMIT in a statement of database/sql that does not end": func(ctx context.Context, _ <-chan struct{}) error {
			_, err := onceward.Tx(ctx).Exec(`END; SELECT pg_sleep(60)`)
			return err
		},
		"a COMMIT in a batch that does not end": func(ctx context.Context, letGo <-chan struct{}) error {
			batch := &pgx.Batch{}
			batch.Queue(`COMMIT`)
			batch.Queue(`SELECT pg_sleep(60)`)
			results := postgres.Tx(ctx).SendBatch(context.Background(), batch)
			<-letGo
			return results.Close()
		},
		"a COMMIT on the connection itself": func(ctx context.Context, letGo <-chan struct{}) error {
			_, err := postgres.Tx(ctx).Conn().Exec(ctx, `COMMIT`)
			<-letGo
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLateSite(t)
			l := s.start(t, hang)
			s.awaitFree(t)
			wantStateOf(t, s.next, "key", store.StateUnknown, "I5: what was committed past the store is not forgotten")
			p := &payer{handle: pgxHandle, value: "second"}
			v, err := s.next.Transact(t.Context(), booking("key"), p.work)
			if err != nil || v.Decision != store.DecisionUnknown {
				t.Errorf("I1: a retry got (%s, %v), want unknown", v.Decision, err)
			}
			l.release()
			if err := await(t, "the end of the handler", l.ended); !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("E1: the late handler ended in %v, want ErrOutcomeUnknown", err)
			}
			s.wantRows(t, "late", 0, "E1")
			eventually(t, "the connection is back", 10*time.Second, func() bool { return s.pool.Stat().AcquiredConns() == 0 })
		})
	}
}

// TestLateHandlerOverHTTP: the client of a late handler is told so, and the retry executes.
func TestLateHandlerOverHTTP(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, servers.Postgres(t))
			store := s.store(t, h, s.url)
			letGo, first := make(chan struct{}), make(chan struct{}, 1)
			release := sync.OnceFunc(func() { close(letGo) })
			t.Cleanup(release)
			first <- struct{}{}
			route := guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := h.insert(r.Context(), "paid"); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				select {
				case <-first:
					<-letGo
				default:
				}
				w.WriteHeader(http.StatusCreated)
			}, onceward.Transactional(), onceward.Lease(time.Second))
			late := make(chan httpReply, 1)
			go func() { late <- post(route, "key") }()
			var retry httpReply
			eventually(t, "a retry is not told that it is in progress", 30*time.Second, func() bool {
				if len(first) > 0 {
					return false
				}
				retry = post(route, "key")
				return retry.code() != "in-progress"
			})
			retry.want(t, http.StatusCreated, false, "E8")
			release()
			reply := await(t, "the answer of the late handler", late)
			reply.wantProblem(t, http.StatusServiceUnavailable, "deadline-exceeded", "E5")
			s.wantRows(t, "paid", 1, "I1")
			post(route, "key").want(t, http.StatusCreated, true, "I3")
		})
	}
}

// TestLateHandlerLeavesNoHandle: the *sql.Tx of a late handler that took the connection too ends with the handler: until then it
// holds a goroutine.
func TestLateHandlerLeavesNoHandle(t *testing.T) {
	t.Parallel()
	s := newLateSite(t)
	var tx *sql.Tx
	l := s.start(t, func(ctx context.Context, letGo <-chan struct{}) error {
		tx = onceward.Tx(ctx)
		postgres.Tx(ctx).Conn()
		<-letGo
		return nil
	})
	s.awaitFree(t)
	l.release()
	if err := await(t, "the end of the handler", l.ended); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("E1: the late handler ended in %v, want ErrOutcomeUnknown", err)
	}
	eventually(t, "the handle is over", 10*time.Second, func() bool {
		_, err := tx.Exec(`SELECT 1`)
		return errors.Is(err, sql.ErrTxDone)
	})
}

// TestNoConnectionBehindTheHandler: a handler that keeps its transaction does not get at the connection when it has returned: that
// may be another request's by then.
func TestNoConnectionBehindTheHandler(t *testing.T) {
	t.Parallel()
	store := openStore(t, servers.Postgres(t).SchemaURL(t))
	var kept pgx.Tx
	transacted(t, store, "kept", func(ctx context.Context) error {
		kept = postgres.Tx(ctx)
		return nil
	})
	if conn := kept.Conn(); conn != nil {
		t.Errorf("E1: behind its end the handler was given the connection %p", conn)
	}
}
