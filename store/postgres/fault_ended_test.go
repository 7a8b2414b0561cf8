package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

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
	for _, h := range bothHandles {
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

// TestHandlerLosesTheReplyToItsOwnCommit: it did what is not its to do, and then nobody knows whether that was done.
func TestHandlerLosesTheReplyToItsOwnCommit(t *testing.T) {
	t.Parallel()
	for _, h := range bothHandles {
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
	for _, h := range bothHandles {
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
	await(t, "the other request", running)
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

// TestRecordChangesUnderATransaction has settling find no row to write: nothing of the work is kept, and it is decided again.
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

// TestExpiredRecordChangesUnderATransaction is the same where the record that was seen had expired, and the reaper took it.
func TestExpiredRecordChangesUnderATransaction(t *testing.T) {
	t.Parallel()
	for _, soft := range []bool{false, true} {
		t.Run(fmt.Sprintf("soft %t", soft), func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			st, other := s.store(t, pgxHandle, s.url), s.store(t, pgxHandle, s.url)
			move := s.movableClock(t, 0)
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
