package postgres_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 48: advisory locks that do nothing, as those of some servers and poolers do. A store that checks them is
// refused. For a program that asserts that they exclude, handlers may run side by side, and by the primary key one of
// them commits.

// noLocks are functions that stand before those of the server and do nothing.
var noLocks = []string{
	`pg_advisory_lock(bigint) RETURNS void LANGUAGE sql AS ''`,
	`pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql AS ''`,
	`pg_advisory_xact_lock(integer, integer) RETURNS void LANGUAGE sql AS ''`,
	`pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
}

// newLocklessSite is a site on which locks do nothing, with a level of isolation.
func newLocklessSite(t testing.TB, isolation string) *site {
	t.Helper()
	s := newSite(t, servers.Postgres(t))
	for _, function := range noLocks {
		exec(t, s.admin, `CREATE FUNCTION `+function)
	}
	address, err := url.Parse(s.url)
	must(t, err)
	query := address.Query()
	query.Set("search_path", query.Get("search_path")+",pg_catalog")
	query.Set("default_transaction_isolation", isolation)
	address.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus for itself
	s.url = address.String()
	s.options = []postgres.Option{postgres.WithAdvisoryLocks()}
	return s
}

// isolations are those that a database may have by default.
var isolations = []string{"read committed", "repeatable read", "serializable"}

// nodes opens so many stores, as so many processes would.
func (s *site) nodes(t testing.TB, h handle, n int, options ...postgres.Option) (stores []*postgres.Store) {
	t.Helper()
	for range n {
		stores = append(stores, s.store(t, h, s.url, options...))
	}
	return stores
}

// meeting has a number of handlers wait for each other, once.
type meeting struct {
	missing atomic.Int64
	all     chan struct{}
}

func newMeeting(n int64) *meeting {
	m := &meeting{all: make(chan struct{})}
	m.missing.Store(n)
	return m
}

// meet returns when everyone has come.
func (m *meeting) meet(t testing.TB) {
	if m.missing.Add(-1) == 0 {
		close(m.all)
	}
	select {
	case <-m.all:
	case <-time.After(await.Limit):
		t.Error("the handlers did not run side by side")
	}
}

// TestLocksThatDoNothing has a handler run on several nodes at once for one key, whether the key is new or there is a
// record of a released attempt: one of them commits, and everyone gets its answer.
func TestLocksThatDoNothing(t *testing.T) {
	t.Parallel()
	const nodes = 4
	for _, h := range someHandles {
		for _, isolation := range isolations {
			for _, before := range []store.State{store.StateNone, store.StateRetryable} {
				t.Run(fmt.Sprintf("%s/%s/%s", h.name, isolation, before), func(t *testing.T) {
					t.Parallel()
					if h.name != pgxHandle.name && isolation != isolations[0] {
						nightly.Only(t, "it starts servers of its own")
					}
					s := newLocklessSite(t, isolation)
					stores := s.nodes(t, h, nodes)
					if before == store.StateRetryable {
						released := own(t, stores[0], booking("paid"))
						must(t, stores[0].Release(t.Context(), released, "not now"))
					}
					together := newMeeting(nodes)
					p := &payer{handle: h, value: "paid", before: func(run int64) {
						if run <= nodes {
							together.meet(t)
						}
					}}
					done := make(chan ended, nodes)
					for _, store := range stores {
						go func() {
							v, err := store.Transact(context.Background(), booking("paid"), p.work)
							done <- ended{v, err}
						}()
					}
					wantOneExecuted(t, done, nodes)
					s.wantRows(t, "paid", 1, "I1")
					if n := p.runs.Load(); n < nodes {
						t.Errorf("the work ran %d times: the locks did something", n)
					}
				})
			}
		}
	}
}

// wantOneExecuted checks that one of those who ran executed, and that all got its answer.
func wantOneExecuted(t testing.TB, done <-chan ended, n int) {
	t.Helper()
	var answers []string
	executed := 0
	for range n {
		got := await.Value(t, "an answer", done)
		must(t, got.err)
		if got.verdict.Decision == store.DecisionExecute {
			executed++
		}
		answers = append(answers, string(got.verdict.Record.Response.Body))
	}
	if executed != 1 || len(slices.Compact(answers)) != 1 {
		t.Errorf("I1, I3: %d executed, and the answers are %q; want one", executed, answers)
	}
}

// TestLocksThatDoNothingUnderLoad has many clients repeat many keys through all nodes: what a client is told for good
// is the same each time, and is what was committed.
func TestLocksThatDoNothingUnderLoad(t *testing.T) {
	t.Parallel()
	const keys, nodes, clients = 20, 3, 4
	s := newLocklessSite(t, isolations[0])
	var routes []http.Handler
	for _, store := range s.nodes(t, pgxHandle, nodes) {
		routes = append(routes, payingRoute(t, pgxHandle, store, onceward.InFlightWait(await.Limit)))
	}
	for k := range keys {
		key := fmt.Sprint("key-", k)
		done := make(chan httpReply, nodes*clients)
		for i := range nodes * clients {
			go func() { done <- post(routes[i%nodes], key) }()
		}
		var bodies []string
		for range nodes * clients {
			reply := await.Value(t, "an answer", done)
			if reply.status != http.StatusCreated {
				t.Errorf("%s was answered with %d %s", key, reply.status, reply.body)
			}
			bodies = append(bodies, reply.body)
		}
		if len(slices.Compact(bodies)) != 1 {
			t.Errorf("I3: %s was answered with %q", key, bodies)
		}
		for _, route := range routes {
			again := post(route, key)
			again.want(t, http.StatusCreated, true, "I3")
			if again.body != bodies[0] {
				t.Errorf("I3: %s was answered with %q, and then with %q", key, bodies[0], again.body)
			}
		}
		s.wantRows(t, key, 1, "I1")
	}
}

// TestLocksThatDoNothingInReservedMode: reservations do not need them.
func TestLocksThatDoNothingInReservedMode(t *testing.T) {
	t.Parallel()
	const nodes = 4
	stores := newLocklessSite(t, isolations[0]).nodes(t, pgxHandle, nodes)
	for k := range 20 {
		key := fmt.Sprint("key-", k)
		var granted atomic.Int64
		var all sync.WaitGroup
		for _, s := range stores {
			all.Go(func() {
				v, err := s.Reserve(t.Context(), booking(key))
				if err != nil {
					t.Error(err)
				}
				if v.Decision == store.DecisionExecute {
					granted.Add(1)
				}
			})
		}
		all.Wait()
		if n := granted.Load(); n != 1 {
			t.Errorf("I1: %s was granted %d times", key, n)
		}
	}
}

// TestLocksThatDoNothingForAnInbox: an event that several consumers get at once is applied once, by the key of what is
// remembered.
func TestLocksThatDoNothingForAnInbox(t *testing.T) {
	t.Parallel()
	const nodes = 4
	s := newLocklessSite(t, isolations[0])
	stores := s.nodes(t, pgxHandle, nodes)
	for k := range 10 {
		event := fmt.Sprint("event-", k)
		done := make(chan error, nodes)
		for _, store := range stores {
			go func() {
				_, err := inbox.New(store).Handle(context.Background(), "books", event, func(ctx context.Context) error {
					return insertPgx(ctx, event)
				})
				done <- err
			}()
		}
		for range nodes {
			must(t, await.Value(t, "the end of a consumer", done))
		}
		s.wantRows(t, event, 1, "I10")
	}
}

// TestReplyToCommitLostWithoutLocks: the record is asked for all the same, and what it says counts.
func TestReplyToCommitLostWithoutLocks(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			f := newCommitFault(t, newLocklessSite(t, isolations[0]), h, "paid")
			f.proxy.CutReply(isCommit)
			v, err := f.transact(t)
			wantVerdict(t, v, err, store.DecisionExecute, 1, "the commit had landed")
			v, err = f.transact(t)
			wantVerdict(t, v, err, store.DecisionReplay, 1, "I3")
			f.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestSlowCommitLostWithoutLocks has the connection go while the server is at the commit, which takes effect later: the
// owner is not told before that, and not that nothing was executed.
func TestSlowCommitLostWithoutLocks(t *testing.T) {
	t.Parallel()
	s := newLocklessSite(t, isolations[0])
	exec(t, s.admin, `CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES`)
	exec(t, s.admin, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM FROM gate FOR UPDATE; RETURN NULL; END $$`)
	gate := holding(t, s.admin, `SELECT FROM gate FOR UPDATE`)
	exec(t, s.admin, `CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON business
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	f := newCommitFault(t, s, pgxHandle, "paid")
	done := f.start(t)
	await.That(t, "the server is at the commit", func() bool {
		return number(t, s.admin, `SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid)
			WHERE wait_event_type = 'Lock' AND query = 'COMMIT' AND relation = 'gate'::regclass`) > 0
	})
	connections := f.proxy.Connections()
	f.proxy.Refuse(true) // also the driver's wish to cancel what it lost
	f.proxy.DropAll()
	await.That(t, "the store has tried to ask",
		func() bool { return f.proxy.Connections() > connections+2 })
	connections = f.proxy.Connections()
	f.proxy.Refuse(false)
	await.That(t, "the store asks", func() bool { return f.proxy.Connections() > connections })
	select {
	case got := <-done:
		t.Errorf("I4: before its commit took effect the owner got (%s, %v)", got.verdict.Decision, got.err)
		return
	default:
	}
	must(t, gate.Rollback(t.Context()))
	got := await.Value(t, "the owner's answer", done)
	wantVerdict(t, got.verdict, got.err, store.DecisionExecute, 1, "I4: the commit took effect, if late")
	v, err := f.transact(t)
	wantVerdict(t, v, err, store.DecisionReplay, 1, "I3")
	s.wantRows(t, "paid", 1, "I1")
}

// TestConflictAtCommitWithoutLocks has the first commits of several nodes fail with 40001, as those of a server do that
// learns of its conflicts at the end: one that is undone decides again.
func TestConflictAtCommitWithoutLocks(t *testing.T) {
	t.Parallel()
	const nodes = 3
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newLocklessSite(t, isolations[0])
			s.failAtCommit(t, "40001", nodes)
			together := newMeeting(nodes)
			p := &payer{handle: h, value: "paid", before: func(run int64) {
				if run <= nodes {
					together.meet(t)
				}
			}}
			done := make(chan ended, nodes)
			for _, store := range s.nodes(t, h, nodes) {
				go func() {
					v, err := store.Transact(context.Background(), booking("paid"), p.work)
					done <- ended{v, err}
				}()
			}
			wantOneExecuted(t, done, nodes)
			s.wantRows(t, "paid", 1, "I1")
		})
	}
}

// TestConflictAtCommitOfAConsumer: the event is applied in the transaction that is run again.
func TestConflictAtCommitOfAConsumer(t *testing.T) {
	t.Parallel()
	s := newLocklessSite(t, isolations[0])
	s.failAtCommit(t, "40001", 2)
	consumer := inbox.New(s.store(t, pgxHandle, s.url))
	for _, want := range []bool{true, false} {
		applied, err := consumer.Handle(t.Context(), "books", "event",
			func(ctx context.Context) error { return insertPgx(ctx, "event") })
		if applied != want || err != nil {
			t.Errorf("I10: applied is %t (%v), want %t", applied, err, want)
		}
	}
	s.wantRows(t, "event", 1, "I10")
}

// lockOf is the key of the advisory lock that the record of a key has.
func lockOf(store *postgres.Store, key string) int64 { return store.LockKey(accountID(key)) }

const (
	takeLock = `SELECT pg_advisory_lock($1)`
	// queueLock is that of a session which is put out while it waits, and with it all that have sent the same.
	queueLock = `SELECT pg_advisory_lock($1) AS queued`
)

// queueForLock has a session of its own wait for a lock that is taken. It gets the lock when that is free, and keeps
// it.
func queueForLock(t testing.TB, s *site, lock int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.url)
	must(t, err)
	pid := int32(conn.PgConn().PID())
	ctx, leave := context.WithCancel(context.Background())
	var session sync.WaitGroup
	session.Go(func() {
		_, _ = conn.Exec(ctx, queueLock, lock) // it may be put out while it waits
		<-ctx.Done()
		_ = conn.Close(context.Background())
	})
	t.Cleanup(func() {
		leave()
		session.Wait()
	})
	await.That(t, "the session waits for the lock", func() (waits bool) {
		must(t, s.admin.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1)`,
			pid).Scan(&waits))
		return waits
	})
}

// looksAtLock finds the statement by which a store that waits looks whether the lock is held.
var looksAtLock = matching(`pg_locks`)

func unlock(t testing.TB, conn *pgx.Conn, lock int64) {
	t.Helper()
	var held bool
	must(t, conn.QueryRow(t.Context(), `SELECT pg_advisory_unlock($1)`, lock).Scan(&held))
	if !held {
		t.Fatal("the lock was not held")
	}
}

// TestLockThatCollides has another session hold the lock of a key, as another key with the same hash would.
func TestLockThatCollides(t *testing.T) {
	t.Parallel()
	for _, h := range someHandles {
		t.Run(h.name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			st := s.store(t, h, s.url)
			route := payingRoute(t, h, st)
			other := connect(t, s.url)
			lock := lockOf(st, "key")
			_, err := other.Exec(t.Context(), takeLock, lock)
			must(t, err)
			for range 2 {
				post(route, "key").wantProblem(t, http.StatusConflict, "in-progress", "scenario 8")
			}
			post(route, "another").want(t, http.StatusCreated, false, "scenario 8: no other key waits")
			s.wantRows(t, "key", 0, "scenario 8")
			wantStateOf(t, st, "key", store.StateNone, "scenario 8")
			unlock(t, other, lock)
			first := post(route, "key")
			first.want(t, http.StatusCreated, false, "scenario 8: it only took longer")
			_, err = other.Exec(t.Context(), takeLock, lock)
			must(t, err)
			again := post(route, "key")
			again.want(t, http.StatusCreated, true, "E1: without the lock, what is there is replayed")
			if again.body != first.body {
				t.Errorf("I3: got %q, and then %q", first.body, again.body)
			}
			s.wantRows(t, "key", 1, "I1")
		})
	}
}

// TestLockThatCollidesWhileWaiting has a duplicate that waits get its turn when the lock is free.
func TestLockThatCollidesWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	store := s.store(t, pgxHandle, proxy.URL())
	route := payingRoute(t, pgxHandle, store, onceward.InFlightWait(await.Limit))
	other := connect(t, s.url)
	lock := lockOf(store, "key")
	_, err := other.Exec(t.Context(), takeLock, lock)
	must(t, err)
	looked := proxy.HoldReply(looksAtLock)
	defer looked()
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	awaitCaught(t, proxy, 1)
	looked()
	unlock(t, other, lock)
	await.Value(t, "the answer", done).want(t, http.StatusCreated, false, "scenario 8")
	s.wantRows(t, "key", 1, "I1")
}

// TestForeignKeyHoldsUpNothing: a transaction of the application that refers to a record by a foreign key, and so locks its
// key, holds up no event and no sweep.
func TestForeignKeyHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, pgxHandle)
	claim := own(t, s.store, reservation("key"))
	refers := holding(t, s.admin, `SELECT FROM onceward_record FOR KEY SHARE`)
	if err := s.store.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "paid"}); err != nil {
		t.Errorf("E7: a checkpoint of a record that a row refers to got %v", err)
	}
	exec(t, s.admin, `UPDATE onceward_record SET due = 0`)
	if n, err := s.store.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("E7: a sweep of a record that a row refers to made (%d, %v) unknown, want 1", n, err)
	}
	must(t, refers.Rollback(t.Context()))
}
