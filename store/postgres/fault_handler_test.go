package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 46: a handler that never returns. When its lease is over its key is free again, on its node and on
// others, whatever it hangs in; and what it does afterwards comes to nothing.

// lateLeases are the leases of handlers that never return. A busy machine may not bring a handler to where it hangs
// within the first one; then the next handler has more time.
var lateLeases = []time.Duration{300 * time.Millisecond, 2 * time.Second, 20 * time.Second}

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
	// hangs reports whether its time was not over before it hung.
	hangs chan bool
	// wrote is what it tried afterwards.
	wrote error
}

// start has a handler hang in one key.
func (s *lateSite) start(t *testing.T, hang hanging) (l *lateHandler) {
	t.Helper()
	for _, lease := range lateLeases {
		l = s.startWith(t, hang, lease)
		if await.Value(t, "the handler", l.hangs) {
			return l
		}
		await.Value(t, "the end of a handler that did not come to hang", l.ended)
	}
	t.Fatalf("no handler came to hang within %s", lateLeases[len(lateLeases)-1])
	return nil
}

// startWith has a handler of this lease hang in one key.
func (s *lateSite) startWith(t *testing.T, hang hanging, lease time.Duration) *lateHandler {
	l := &lateHandler{letGo: make(chan struct{}), ended: make(chan error, 1), hangs: make(chan bool, 1)}
	l.release = sync.OnceFunc(func() { close(l.letGo) })
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.release()
		running.Wait()
	})
	r := booking("key")
	r.Lease = lease
	running.Go(func() {
		_, err := s.store.Transact(context.Background(), r, func(ctx context.Context, _ store.Verdict) store.Settlement {
			err := insertPgx(ctx, "first")
			l.hangs <- err == nil
			if err != nil {
				return store.Settlement{Action: store.TxRollback}
			}
			_ = hang(ctx, l.letGo)
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
	await.Return(t, "E8: the wait for a key whose handler is late", func() {
		if err := s.store.Wait(t.Context(), accountID("key"), 0); err != nil {
			t.Errorf("the wait for a key whose handler is late ended with %v", err)
		}
	})
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
				if !elsewhere {
					nightly.Only(t, "a retry on another node is tried on each change")
				}
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
				err = await.Value(t, "the end of the handler", l.ended)
				wantNotExecuted(t, err, "E1")
				if !errors.Is(err, store.ErrDeadline) || l.wrote == nil {
					t.Errorf("E5: the late handler wrote (%v) and ended in %v, want errors and ErrDeadline", l.wrote, err)
				}
				for value, n := range map[string]int{"first": 0, "second": 1, "late": 0, "in a batch": 0, "copied": 0} {
					s.wantRows(t, value, n, "I1")
				}
				v, err = s.store.Transact(t.Context(), booking("key"), p.work)
				wantVerdict(t, v, err, store.DecisionReplay, 1, "I3")
				await.That(t, "the connection is back", func() bool { return s.pool.Stat().AcquiredConns() == 0 })
			})
		}
	}
}

// commitLate has a handler hang that has committed before its time was over.
func commitLate(t *testing.T, hang hanging) (*lateSite, *lateHandler) {
	t.Helper()
	for _, lease := range lateLeases {
		s := newLateSite(t)
		l := s.startWith(t, hang, lease)
		inTime := await.Value(t, "the handler", l.hangs)
		s.awaitFree(t)
		if inTime && number(t, s.admin, `SELECT count(*) FROM business WHERE value = 'first'`) == 1 {
			return s, l
		}
		l.release()
		await.Value(t, "the end of a handler that did not come to its commit", l.ended)
	}
	t.Fatalf("no handler committed within %s", lateLeases[len(lateLeases)-1])
	return nil, nil
}

// TestHandlerCommitsAndNeverReturns: where the handler may have ended the transaction by itself, it is unknown what
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
			s, l := commitLate(t, hang)
			wantStateOf(t, s.next, "key", store.StateUnknown, "I5: what was committed past the store is not forgotten")
			p := &payer{handle: pgxHandle, value: "second"}
			v, err := s.next.Transact(t.Context(), booking("key"), p.work)
			if err != nil || v.Decision != store.DecisionUnknown {
				t.Errorf("I1: a retry got (%s, %v), want unknown", v.Decision, err)
			}
			l.release()
			if err := await.Value(t, "the end of the handler", l.ended); !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("E1: the late handler ended in %v, want ErrOutcomeUnknown", err)
			}
			s.wantRows(t, "late", 0, "E1")
			await.That(t, "the connection is back", func() bool { return s.pool.Stat().AcquiredConns() == 0 })
		})
	}
}

// TestLateHandlerOverHTTP: the client of a late handler is told so, and the retry executes.
func TestLateHandlerOverHTTP(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, servers.Postgres(t))
			store := s.store(t, h, s.url)
			letGo, first := make(chan struct{}), make(chan struct{}, 1)
			release := sync.OnceFunc(func() { close(letGo) })
			t.Cleanup(release)
			route := func(lease time.Duration) http.Handler {
				return guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					err := h.insert(r.Context(), "paid")
					select {
					case first <- struct{}{}:
						<-letGo
					default:
					}
					if err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					w.WriteHeader(http.StatusCreated)
				}, onceward.Transactional(), onceward.Lease(lease))
			}
			late := make(chan httpReply, 1)
			go func() { late <- post(route(time.Second), "key") }()
			patient := route(time.Hour)
			var retry httpReply
			await.That(t, "a retry is not answered that it is in progress", func() bool {
				if len(first) == 0 {
					return false
				}
				retry = post(patient, "key")
				return retry.code() != "in-progress"
			})
			retry.want(t, http.StatusCreated, false, "E8")
			release()
			reply := await.Value(t, "the answer of the late handler", late)
			reply.wantProblem(t, http.StatusServiceUnavailable, "deadline-exceeded", "E5")
			s.wantRows(t, "paid", 1, "I1")
			post(patient, "key").want(t, http.StatusCreated, true, "I3")
		})
	}
}

// TestLateHandlerLeavesNoHandle: the *sql.Tx of a late handler that took the connection too ends with the handler:
// until then it holds a goroutine.
func TestLateHandlerLeavesNoHandle(t *testing.T) {
	t.Parallel()
	s := newLateSite(t)
	var tx *sql.Tx
	var err error
	for _, lease := range lateLeases {
		exec(t, s.admin, `DELETE FROM onceward_record`)
		l := s.startWith(t, func(ctx context.Context, letGo <-chan struct{}) error {
			tx = onceward.Tx(ctx)
			postgres.Tx(ctx).Conn()
			<-letGo
			return nil
		}, lease)
		await.Value(t, "the handler", l.hangs)
		s.awaitFree(t)
		l.release()
		if err = await.Value(t, "the end of the handler", l.ended); errors.Is(err, store.ErrOutcomeUnknown) {
			break
		}
	}
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("E1: the late handler ended in %v, want ErrOutcomeUnknown", err)
	}
	await.That(t, "the handle is over", func() bool {
		_, err := tx.Exec(`SELECT 1`)
		return errors.Is(err, sql.ErrTxDone)
	})
}

// TestNoConnectionBehindTheHandler: a handler that keeps its transaction does not get at the connection when it has
// returned: that may be another request's by then.
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

// E1: what becomes of a handler that ends, spoils or loses its transaction.

// run executes a statement in the way that goes with the handle.
func (h handle) run(ctx context.Context, statement string) (err error) {
	if h.name == sqlHandle.name {
		_, err = onceward.Tx(ctx).ExecContext(ctx, statement)
	} else {
		_, err = postgres.Tx(ctx).Exec(ctx, statement)
	}
	return err
}

// spoiling is a transactional route that adds a row, runs a statement, and answers with the status whatever came of it.
func spoiling(t testing.TB, h handle, store store.Store, statement string, status int) http.Handler {
	t.Helper()
	return guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.insert(r.Context(), "row"); err != nil {
			t.Errorf("the handler failed: %v", err)
		}
		_ = h.run(r.Context(), statement) // the handler does not look
		w.WriteHeader(status)
		fmt.Fprint(w, "the answer")
	}, onceward.Transactional())
}

// wrongStatement fails, and with it the transaction.
const wrongStatement = `INSERT INTO business (value) VALUES (NULL)`

func TestHandlerEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		for statement, rows := range map[string]int{
			`COMMIT`: 1, `ROLLBACK`: 0, `COMMIT AND CHAIN`: 1, `END`: 1, wrongStatement: 0,
		} {
			t.Run(h.name+"/"+statement, func(t *testing.T) {
				s := newSite(t, servers.Postgres(t))
				st := s.store(t, h, s.url)
				route := spoiling(t, h, st, statement, http.StatusCreated)
				post(route, "key").wantProblem(t, http.StatusInternalServerError, "outcome-unknown", "E1")
				wantStateOf(t, st, "key", store.StateUnknown, "E1")
				post(route, "key").wantProblem(t, http.StatusConflict, "outcome-unknown", "E1")
				s.wantRows(t, "row", rows, "E1: it is never executed again")
				post(spoiling(t, h, st, `SELECT 1`, http.StatusCreated), "another").
					want(t, http.StatusCreated, false, "E1: the connections are clean")
			})
		}
	}
}

// TestHandlerLosesTheReplyToItsOwnCommit: it did what is not its to do, and then it is unknown whether that was done.
func TestHandlerLosesTheReplyToItsOwnCommit(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			store := s.store(t, h, proxy.URL())
			route := spoiling(t, h, store, `COMMIT /* of the handler */`, http.StatusCreated)
			proxy.CutReply(matching(`of the handler`))
			post(route, "key").wantProblem(t, http.StatusInternalServerError, "outcome-unknown", "E1")
			post(route, "key").wantProblem(t, http.StatusConflict, "outcome-unknown", "E1")
			s.wantRows(t, "row", 1, "I5: it is never executed again")
		})
	}
}

// TestHandlerRefusesAfterAFailedStatement is a handler that runs into a violation, and says so.
func TestHandlerRefusesAfterAFailedStatement(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			st := s.store(t, h, s.url)
			route := spoiling(t, h, st, wrongStatement, http.StatusConflict)
			first := post(route, "key")
			first.want(t, http.StatusConflict, false, "E1")
			again := post(route, "key")
			again.want(t, http.StatusConflict, true, "E1: the answer is stored")
			if first.body != "the answer" || again.body != first.body {
				t.Errorf("I3: got %q, and then %q", first.body, again.body)
			}
			wantStateOf(t, st, "key", store.StateCompleted, "E1")
			s.wantRows(t, "row", 0, "E1: a 4xx undoes the work")
		})
	}
}

// disturbance changes the record of a key while a handler runs that has seen it, from another connection.
type disturbance struct {
	name string
	// released says that the handler's transaction has seen a record that may be retried; else it has seen none.
	released bool
	disturb  func(t testing.TB, s *site, other *postgres.Store)
	// status and replayed are what the request is answered with, rows what it leaves, runs how often it ran.
	status   int
	replayed bool
	rows     int
	runs     int64
}

var disturbances = []disturbance{
	{"the record is deleted", true, func(t testing.TB, s *site, other *postgres.Store) {
		exec(t, s.admin, `DELETE FROM onceward_record`)
	}, http.StatusCreated, false, 1, 2},
	{"the record is busted", true, func(t testing.TB, _ *site, other *postgres.Store) {
		must(t, other.Bust(t.Context(), accountID("key"), false))
	}, http.StatusCreated, false, 1, 2},
	{"the record is reserved", true, func(t testing.TB, _ *site, other *postgres.Store) {
		reserveElsewhere(t, other)
	}, http.StatusConflict, false, 0, 1},
	{"the record is completed", true, func(t testing.TB, _ *site, other *postgres.Store) {
		completeElsewhere(t, other)
	}, http.StatusAccepted, true, 0, 1},
	{"a record is reserved", false, func(t testing.TB, _ *site, other *postgres.Store) {
		reserveElsewhere(t, other)
	}, http.StatusConflict, false, 0, 1},
	{"a record is completed", false, func(t testing.TB, _ *site, other *postgres.Store) {
		completeElsewhere(t, other)
	}, http.StatusAccepted, true, 0, 1},
}

// elsewhere is the same request in reserved mode on another store: its handler says how it goes on.
func elsewhere(t testing.TB, other *postgres.Store, handler http.HandlerFunc) httpReply {
	t.Helper()
	return post(guardOver(t, other).HandlerFunc(handler, onceward.Reserved(onceward.FailureUnknown)), "key")
}

// reserveElsewhere leaves a reservation behind that runs until the end of the test.
func reserveElsewhere(t testing.TB, other *postgres.Store) {
	running, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { <-over })
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	go func() {
		defer close(over)
		elsewhere(t, other, func(http.ResponseWriter, *http.Request) {
			close(running)
			<-ctx.Done()
		})
	}()
	await.Value(t, "the other request", running)
}

func completeElsewhere(t testing.TB, other *postgres.Store) {
	elsewhere(t, other, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }).
		want(t, http.StatusAccepted, false, "the same key in reserved mode meets the same record")
}

// releaseFirst leaves a record that may be retried.
func releaseFirst(t testing.TB, s *postgres.Store) {
	elsewhere(t, s, func(_ http.ResponseWriter, r *http.Request) { onceward.FromContext(r.Context()).NotExecuted() })
	wantStateOf(t, s, "key", store.StateRetryable, "E5")
}

// TestRecordChangesUnderATransaction has settling find no row to write: nothing of the work is kept, and it is decided
// again.
func TestRecordChangesUnderATransaction(t *testing.T) {
	t.Parallel()
	for _, d := range disturbances {
		t.Run(d.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			store, other := s.store(t, pgxHandle, s.url), s.store(t, pgxHandle, s.url)
			if d.released {
				releaseFirst(t, other)
			}
			var runs int64
			route := guardOver(t, store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				must(t, insertPgx(r.Context(), "row"))
				if runs++; runs == 1 {
					d.disturb(t, s, other)
				}
				w.WriteHeader(http.StatusCreated)
			}, onceward.Transactional())
			post(route, "key").want(t, d.status, d.replayed, "E1: it is decided again")
			s.wantRows(t, "row", d.rows, "E1: nothing of the first run is kept")
			if runs != d.runs {
				t.Errorf("E1: the handler ran %d times, want %d", runs, d.runs)
			}
		})
	}
}

// TestExpiredRecordChangesUnderATransaction is the same where the record that was seen had expired, and the reaper took
// it.
func TestExpiredRecordChangesUnderATransaction(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{false, true} {
		t.Run(fmt.Sprintf("soft %t", soft), func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			st, other := s.store(t, pgxHandle, s.url), s.store(t, pgxHandle, s.url)
			move := postgres.NewTestClock(t, st).Advance
			p := &payer{handle: pgxHandle, value: "row"}
			v, err := st.Transact(t.Context(), booking("key"), p.work)
			wantVerdict(t, v, err, store.DecisionExecute, 1, "section 4")
			move(61 * time.Minute)
			p.before = func(run int64) {
				if run == 2 {
					_, err := other.Reap(t.Context(), 10, soft)
					must(t, err)
				}
			}
			v, err = st.Transact(t.Context(), booking("key"), p.work)
			wantVerdict(t, v, err, store.DecisionExecute, 3, "E1: it is decided again")
			s.wantRows(t, "row", 2, "E1: once before the expiry, and once after")
			v, err = st.Transact(t.Context(), booking("key"), p.work)
			wantVerdict(t, v, err, store.DecisionReplay, 3, "I3")
		})
	}
}
