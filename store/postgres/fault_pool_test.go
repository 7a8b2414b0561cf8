package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
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

// Scenario 15: the application's pool is exhausted while a handler needs to complete.

// narrow is a store on a handle with one connection.
type narrow struct {
	store *postgres.Store
	// pay takes the connection, adds a row and keeps the connection until release is called.
	pay func(ctx context.Context, value string) (release func(), err error)
}

// narrowPool is a store on a pool of pgx with one connection.
func narrowPool(t testing.TB, s *site) narrow {
	t.Helper()
	config, err := pgxpool.ParseConfig(s.url)
	must(t, err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return narrow{store, func(ctx context.Context, value string) (func(), error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return func() {}, err
		}
		_, err = conn.Exec(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
		return conn.Release, err
	}}
}

// narrowSQL is a store on a *sql.DB with one connection.
func narrowSQL(t testing.TB, s *site) narrow {
	t.Helper()
	config, err := pgx.ParseConfig(s.url)
	must(t, err)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { must(t, db.Close()) })
	store, err := postgres.NewSQL(t.Context(), db, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return narrow{store, func(ctx context.Context, value string) (func(), error) {
		var conn *sql.Conn
		conn, err := db.Conn(ctx)
		if err != nil {
			return func() {}, err
		}
		_, err = conn.ExecContext(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
		return func() { must(t, conn.Close()) }, err
	}}
}

var narrowHandles = map[string]func(testing.TB, *site) narrow{"pgx": narrowPool, "database/sql": narrowSQL}

// TestCompletionPastAnExhaustedPool has a handler keep the only connection for longer than its own request.
func TestCompletionPastAnExhaustedPool(t *testing.T) {
	t.Parallel()
	for name, open := range narrowHandles {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			n := open(t, s)
			release := func() {}
			route := guardOver(t, n.store).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var err error
				if release, err = n.pay(r.Context(), "paid"); err != nil {
					t.Errorf("the handler got no connection: %v", err)
				}
				w.WriteHeader(http.StatusCreated)
			}, onceward.Reserved(onceward.FailureUnknown))
			post(route, "key").want(t, http.StatusCreated, false, "scenario 15")
			wantStateOf(t, n.store, "key", store.StateCompleted, "scenario 15")
			post(route, "key").want(t, http.StatusCreated, true, "scenario 15: replays need no connection of the pool")
			s.wantRows(t, "paid", 1, "I1")
			release()
		})
	}
}

// TestTransactionWaitsForThePool says that nothing was executed when no connection came in time.
func TestTransactionWaitsForThePool(t *testing.T) {
	t.Parallel()
	for name, open := range narrowHandles {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			n := open(t, s)
			release, err := n.pay(t.Context(), "hog")
			must(t, err)
			p := &payer{handle: pgxHandle, value: "paid"}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err = n.store.Transact(ctx, booking("paid"), p.work)
			wantNotExecuted(t, err, "scenario 15")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want a reason", err)
			}
			release()
			v, err := n.store.Transact(t.Context(), booking("paid"), p.work)
			wantVerdict(t, v, err, store.DecisionExecute, 1, "the retry has a connection")
			s.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestCompletionPastUnansweredCommits has more commits wait to learn their fate than the store has connections of its
// own: each waits for a lock that another session has. That must not keep others from completing.
func TestCompletionPastUnansweredCommits(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	claimed, err := st.Reserve(t.Context(), booking("reserved"))
	must(t, err)
	const unanswered = 12
	ends := make(chan error, unanswered)
	for i := range unanswered {
		key := string(rune('a' + i))
		p := &payer{handle: pgxHandle, value: key, before: func(int64) { queueForLock(t, s, lockOf(st, key)) }}
		// Who asks what became of a commit ends with COMMIT too, so it is told by what goes before it.
		proxy.CutReply(matching(`INSERT INTO \S*onceward_record`))
		go func() {
			_, err := st.Transact(context.Background(), booking(key), p.work)
			ends <- err
		}()
		awaitCaught(t, proxy, i+1)
	}
	_, err = st.Complete(t.Context(), store.Claim{ID: accountID("reserved"), Attempt: claimed.Record.Attempt},
		&store.Completion{Response: store.Response{Status: http.StatusCreated}})
	if err != nil {
		t.Errorf("scenario 15: completion has its own way in: %v", err)
	}
	if n := len(ends); n > 0 {
		t.Errorf("scenario 15: %d commits had ended before the completion, which may have waited for them", n)
	}
	// The sessions that have the locks are put out, and not those that ask.
	exec(t, s.admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1`, queueLock)
	for range unanswered {
		if err := await.Value(t, "the end of a commit", ends); err != nil {
			t.Errorf("the commit had landed: %v", err)
		}
	}
}
