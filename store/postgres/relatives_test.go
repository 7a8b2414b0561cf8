package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Servers that speak PostgreSQL's protocol and do not do all that PostgreSQL does, made of PostgreSQL itself: functions
// are replaced in a database, or a proxy reads statements differently.

// withoutLocks takes the advisory locks away from a database, as a server does that has none. A rename, because
// programs look functions up by their names.
var withoutLocks = []string{
	`ALTER FUNCTION pg_catalog.pg_advisory_lock(bigint) RENAME TO was_advisory_lock`,
	`ALTER FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) RENAME TO was_advisory_xact_lock`,
	`ALTER FUNCTION pg_catalog.pg_advisory_xact_lock(integer, integer) RENAME TO was_advisory_xact_lock`,
	`ALTER FUNCTION pg_catalog.pg_try_advisory_xact_lock(bigint) RENAME TO was_try_advisory_xact_lock`,
	`ALTER FUNCTION pg_catalog.pg_try_advisory_xact_lock(integer, integer) RENAME TO was_try_advisory_xact_lock`,
}

// withoutNotifications takes those away.
var withoutNotifications = []string{`ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO was_notify`}

// withIdleLocks puts functions that do nothing in the place of the advisory locks, for all who use the database.
func withIdleLocks() []string {
	changes := append([]string{}, withoutLocks...)
	for _, function := range append(noLocks,
		`pg_try_advisory_xact_lock(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT true'`) {
		changes = append(changes, `CREATE FUNCTION pg_catalog.`+function)
	}
	return changes
}

// changedDatabase is a database of a server with some of its functions changed.
func changedDatabase(t testing.TB, changes []string) (address string) {
	t.Helper()
	address = databaseURL(t)
	admin, err := pgxpool.New(context.Background(), address)
	must(t, err)
	defer admin.Close()
	for _, change := range changes {
		exec(t, admin, change)
	}
	return address
}

// schemaIn makes a schema in a database, which goes with it.
func schemaIn(t testing.TB, database string) (address string) {
	t.Helper()
	admin, err := pgxpool.New(context.Background(), database)
	must(t, err)
	defer admin.Close()
	name := servers.Postgres(t).Name(t)
	exec(t, admin, `CREATE SCHEMA `+name)
	return database + "&search_path=" + name
}

// schemasIn has the grounds of a run of the suite in one database.
func schemasIn(database string) func(t, run testing.TB) (url, admin string) {
	return func(t, _ testing.TB) (url, admin string) {
		url = schemaIn(t, database)
		return url, url
	}
}

// behindProxy has the grounds of a run behind proxies that are set up in some way.
func behindProxy(set func(*servers.Proxy)) func(t, run testing.TB) (url, admin string) {
	return func(_, run testing.TB) (url, admin string) {
		admin = servers.Postgres(run).SchemaURL(run)
		proxy := servers.NewProxy(run, admin)
		set(proxy)
		return proxy.URL(), admin
	}
}

// alwaysSerializable reads every level of isolation as the strictest, as a server does that has no other.
func alwaysSerializable(proxy *servers.Proxy) {
	proxy.Rewrite("READ COMMITTED", "SERIALIZABLE")
	proxy.Rewrite("read committed", "serializable")
}

// refusesToListen is a server without LISTEN.
func refusesToListen(proxy *servers.Proxy) { proxy.Deny(matching(`^LISTEN`), "0A000") }

// serializableURL makes that the default of a database's transactions.
func serializableURL(address string) string {
	return address + "&default_transaction_isolation=serializable"
}

// variant is why most tests of servers that behave otherwise run at night.
const variant = "it is another manner of server; make test has TestDuplicatesDoNotRunWhereLocksDoNothing"

// TestStoreOnLocksThatDoNothing and those that follow run the suite on servers that behave otherwise.
func TestStoreOnLocksThatDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	database := changedDatabase(t, withIdleLocks())
	pgxHandle.conformOn(t, schemasIn(database))
}

func TestStoreWithoutAdvisoryLocks(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	pgxHandle.conformOn(t, schemasIn(changedDatabase(t, withoutLocks)))
}

func TestStoreWithoutNotifications(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	database := changedDatabase(t, withoutNotifications)
	pgxHandle.conformOn(t, schemasIn(database))
}

func TestStoreThatCannotListen(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	pgxHandle.conformOn(t, behindProxy(refusesToListen))
}

func TestStoreOnSerializableDatabase(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	pgxHandle.conformOn(t, func(_, run testing.TB) (url, admin string) {
		admin = servers.Postgres(run).SchemaURL(run)
		return serializableURL(admin), admin
	})
}

// behindPgBouncer has the grounds of a run behind PgBouncer in transaction mode. It closes connections that nobody uses
// soon, because the end of a test's sessions is awaited.
func behindPgBouncer(place func(t, run testing.TB) (url, admin string)) func(t, run testing.TB) (url, admin string) {
	return func(t, run testing.TB) (url, admin string) {
		_, admin = place(t, run)
		return servers.NewPgBouncer(run, admin, "server_idle_timeout=1").URL(), admin
	}
}

// TestStoreBehindPgBouncer: it takes no parameters of sessions, prepares nothing, and has another connection for each
// transaction.
func TestStoreBehindPgBouncer(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	pgxHandle.conformOn(t, behindPgBouncer(onSharedServer))
}

func TestStoreBehindPgBouncerOnLocksThatDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own") // each of the two is tested without
	database := changedDatabase(t, withIdleLocks())
	pgxHandle.conformOn(t, behindPgBouncer(schemasIn(database)))
}

// TestStoreBehindPgBouncerThatResets: it forgets what was set on a connection after each transaction, also what its own
// connect_query has set, so that the tables are in a database of their own. It mixes up replies if anyone listens through
// it, as the store once did.
func TestStoreBehindPgBouncerThatResets(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	pgxHandle.conformOn(t, func(_, run testing.TB) (url, admin string) {
		admin = databaseURL(run)
		return servers.NewPgBouncer(run, admin, "server_idle_timeout=1", "server_reset_query_always=1").URL(), admin
	})
}

// TestStoreBehindPgBouncerOnSerializableDatabase: nothing but the database says how transactions are isolated, and locks
// do nothing.
func TestStoreBehindPgBouncerOnSerializableDatabase(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	database := changedDatabase(t, append(withIdleLocks(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database());
	END $$`))
	groups := []string{
		"Transitions", "Races", "RacesWithSweeper", "Expiry", "Fencing", "Tokens", "Repeats", "Identity", "Content",
		"Waiter", "Sweeper", "Reaper", "Reconciler", "Transactor", "TransactorRaces", "TransactorOwnership", "Outbox",
		"OutboxOrder", "Natural", "Inbox",
	}
	pgxHandle.conformOn(t, behindPgBouncer(schemasIn(database)), groups...)
}

// TestStoreWhereAllIsSerializable leaves two chapters out, Checkpointer and CheckpointerRaces, in which a step meets its
// own heartbeat each time it is run: where every transaction is serializable, that undoes the step.
func TestStoreWhereAllIsSerializable(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	groups := []string{
		"Transitions", "Invalid", "Races", "RacesWithSweeper", "RacesWithReaper", "RacesWithReconciler",
		"RacesWithBuster", "Expiry", "Lost", "Fencing", "Tokens", "Repeats", "Fingerprints", "Identity",
		"Content", "Cancellation", "Restart", "Waiter", "Sweeper", "Reaper", "Reconciler", "Requeue",
		"ResolvedStep", "Buster", "Lister", "Rewriter", "Finder", "Retainer", "LateCompletions",
		"ExternalEvents", "Audit", "AuditLister", "Executions", "Transactor", "TransactorRaces",
		"TransactorOwnership", "CheckpointerModel", "CheckpointerOwnership", "Random", "Outbox", "OutboxOrder",
		"OutboxTransactions", "OutboxAnswer", "OutboxLeases", "OutboxFencing", "OutboxFinishTx",
		"OutboxOperator", "OutboxUpkeep", "OutboxCrowd", "OutboxRandom", "Inbox", "InboxTransactions", "Natural",
	}
	pgxHandle.conformOn(t, behindProxy(alwaysSerializable), groups...)
}

// TestBehaviour: a store says what it found.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	ordinary := postgres.Behaviour{Isolation: "read committed", Notifies: true, Listens: true}
	schema := func(t testing.TB) string { return servers.Postgres(t).SchemaURL(t) }
	proxied := func(set func(*servers.Proxy)) func(testing.TB) string {
		return func(t testing.TB) string {
			url, _ := behindProxy(set)(t, t)
			return url
		}
	}
	for name, each := range map[string]struct {
		url    func(testing.TB) string
		option postgres.Option
		want   func(*postgres.Behaviour)
		warns  string
	}{
		"an ordinary server": {url: schema, want: func(*postgres.Behaviour) {}},
		"locks that do nothing": {
			url:   func(t testing.TB) string { return newLocklessSite(t, "read committed").url },
			want:  func(b *postgres.Behaviour) { b.RowLocks = true },
			warns: "advisory locks do nothing",
		},
		"no locks": {
			url: func(t testing.TB) string {
				nightly.Only(t, "it makes a database")
				return changedDatabase(t, withoutLocks)
			},
			want:  func(b *postgres.Behaviour) { b.RowLocks = true },
			warns: "advisory locks do nothing",
		},
		"no notifications": {
			url: func(t testing.TB) string {
				nightly.Only(t, "it makes a database")
				return changedDatabase(t, withoutNotifications)
			},
			want:  func(b *postgres.Behaviour) { b.Notifies, b.Listens = false, false },
			warns: "there are no notifications",
		},
		"no listening": {
			url: proxied(refusesToListen), want: func(b *postgres.Behaviour) { b.Listens = false },
		},
		"a serializable database": {
			url:  func(t testing.TB) string { return serializableURL(servers.Postgres(t).SchemaURL(t)) },
			want: func(*postgres.Behaviour) {},
		},
		"a server that is always serializable": {
			url: proxied(alwaysSerializable), want: func(b *postgres.Behaviour) { b.Isolation = "serializable" },
			warns: "transactions are serializable",
		},
		"row locks by choice": {
			url: schema, option: postgres.WithRowLocks(), want: func(b *postgres.Behaviour) { b.RowLocks = true },
		},
		"what is not tried": {
			url: schema, option: postgres.WithAdvisoryLocks(), want: func(b *postgres.Behaviour) { b.Isolation = "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			book, logging := newLogbook()
			options := []postgres.Option{logging}
			if each.option != nil {
				options = append(options, each.option)
			}
			s, err := postgres.Open(t.Context(), each.url(t), options...)
			must(t, err)
			defer func() { must(t, s.Close()) }()
			want := ordinary
			each.want(&want)
			if want.Listens {
				await.That(t, "it listens", func() bool { return s.Behaviour().Listens })
			}
			if got := s.Behaviour(); got != want {
				t.Errorf("it found %+v, want %+v", got, want)
			}
			said := book.find("does not behave as PostgreSQL does")
			if each.warns == "" && len(said) > 0 ||
				each.warns != "" && (len(said) != 1 || !strings.Contains(said[0], each.warns)) {
				t.Errorf("it warned %q, want %q", said, each.warns)
			}
			exercise(t, s, "key")
		})
	}
}

// TestProbeCosts: it takes three round trips.
func TestProbeCosts(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	openStore(t, url)
	trips := func(options ...postgres.Option) int {
		proxy := servers.NewProxy(t, url)
		// What listens does its part when it likes.
		s, err := postgres.Open(t.Context(), proxy.URL(), append(options, quiet, postgres.WithListenURL(url))...)
		must(t, err)
		defer func() { must(t, s.Close()) }()
		await.That(t, "it listens", func() bool { return s.Behaviour().Listens })
		return proxy.RoundTrips()
	}
	if with, without := trips(), trips(postgres.WithAdvisoryLocks()); with-without != 3 {
		t.Errorf("opening took %d round trips, and %d without: the difference is to be 3", with, without)
	}
}

// race is many nodes that get the same keys at the same time.
type race struct {
	keys, nodes int
	runs        atomic.Int64
	told        [6]atomic.Int64 // by decision
}

// run has each node ask for each key, once, and counts how often the work ran.
func (r *race) run(t testing.TB, stores []*postgres.Store) {
	for k := range r.keys {
		key := fmt.Sprint("key-", k)
		var all sync.WaitGroup
		for _, s := range stores {
			all.Go(func() {
				work := func(ctx context.Context, v store.Verdict) store.Settlement {
					said := fmt.Sprint("run ", r.runs.Add(1)) // no two say the same
					return committing(said, func(ctx context.Context) error { return insertPgx(ctx, key) })(ctx, v)
				}
				v, err := s.Transact(context.Background(), booking(key), work)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				r.told[v.Decision].Add(1)
			})
		}
		all.Wait()
	}
}

// TestDuplicatesDoNotRunWhereLocksDoNothing: keys that 8 nodes race for are one run of the work each, and all other calls
// get that the key is in progress, or the answer.
func TestDuplicatesDoNotRunWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	for name, changes := range map[string][]string{"do nothing": withIdleLocks(), "are missing": withoutLocks} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "are missing" {
				nightly.Only(t, "it starts servers of its own") // the same rows
			}
			s := &site{url: changedDatabase(t, changes)}
			s.admin = openAdmin(t, s.url)
			exec(t, s.admin, `CREATE TABLE business (number bigint GENERATED ALWAYS AS IDENTITY, value TEXT NOT NULL)`)
			keys := nightly.Either(300, 30)
			r := &race{keys: keys, nodes: 8}
			r.run(t, s.nodes(t, pgxHandle, r.nodes))
			executed, rest := r.told[store.DecisionExecute].Load(),
				r.told[store.DecisionReplay].Load()+r.told[store.DecisionInProgress].Load()
			if n := int64(keys); r.runs.Load() != n || executed != n || rest != n*7 {
				t.Errorf("I1: %d runs, %d executed, %d replayed or in progress", r.runs.Load(), executed, rest)
			}
			if rows, values := number(t, s.admin, `SELECT count(*) FROM business`),
				number(t, s.admin, `SELECT count(DISTINCT value) FROM business`); rows != keys || values != keys {
				t.Errorf("I1: %d rows of %d keys", rows, values)
			}
			if left := number(t, s.admin, `SELECT count(*) FROM onceward_lock`); left != 0 {
				t.Errorf("%d locks are left", left)
			}
		})
	}
}

// TestClaimCancelledWhereLocksDoNothing: PostgreSQL tells of a time that is up between two waits of one insert as if a user
// had cancelled it. A duplicate whose wait ends so is in progress like the others.
func TestClaimCancelledWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	s := &site{url: changedDatabase(t, withoutLocks)}
	s.admin = openAdmin(t, s.url)
	nodes := s.nodes(t, pgxHandle, 2)
	exec(t, s.admin, `ALTER FUNCTION onceward_try_lock SET lock_timeout = '1min'`) // so that it is there to be cancelled
	began, end, done := make(chan struct{}), make(chan struct{}), make(chan ended, 2)
	go func() {
		v, err := nodes[0].Transact(context.Background(), booking("key"), committing("done", func(context.Context) error {
			close(began)
			<-end
			return nil
		}))
		done <- ended{v, err}
	}()
	await.Value(t, "the handler", began)
	go func() {
		v, err := nodes[1].Transact(context.Background(), booking("key"), committing("twice", nothing))
		done <- ended{v, err}
	}()
	await.That(t, "the duplicate was cancelled", func() bool {
		return number(t, s.admin, `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	if got := await.Value(t, "the duplicate", done); got.err != nil || got.verdict.Decision != store.DecisionInProgress {
		t.Errorf("the duplicate was told %v (%v)", got.verdict.Decision, got.err)
	}
	close(end)
	if got := await.Value(t, "the owner", done); got.err != nil || got.verdict.Decision != store.DecisionExecute {
		t.Errorf("the owner was told %v (%v)", got.verdict.Decision, got.err)
	}
}

// TestRaceWhereAllIsSerializable: nodes that race where every transaction is serializable, and locks do nothing, undo
// each other. One commits, nobody is told that it failed, and what was undone is run again.
func TestRaceWhereAllIsSerializable(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	s := &site{url: changedDatabase(t, withIdleLocks())}
	s.admin = openAdmin(t, s.url)
	exec(t, s.admin, `CREATE TABLE business (number bigint GENERATED ALWAYS AS IDENTITY, value TEXT NOT NULL)`)
	proxy := servers.NewProxy(t, s.url)
	alwaysSerializable(proxy)
	s.url = proxy.URL()
	r := &race{keys: 40, nodes: 6}
	r.run(t, s.nodes(t, pgxHandle, r.nodes))
	if n := r.told[store.DecisionExecute].Load(); n != 40 {
		t.Errorf("I1: %d of 40 executed", n)
	}
	if rows, keys := number(t, s.admin, `SELECT count(*) FROM business`),
		number(t, s.admin, `SELECT count(DISTINCT value) FROM business`); rows != 40 || keys != 40 {
		t.Errorf("I1: %d rows of %d keys", rows, keys)
	}
	t.Logf("the work ran %d times", r.runs.Load())
}

// TestCommitRefusedInReservedMode: a conflict that a server tells of at the end of a statement's own transaction is
// decided again, in every table.
func TestCommitRefusedInReservedMode(t *testing.T) {
	t.Parallel()
	address := servers.Postgres(t).SchemaURL(t)
	s, admin := openStore(t, address), openAdmin(t, address)
	exec(t, admin, `CREATE SEQUENCE conflicts`)
	exec(t, admin, `CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('conflicts') % 3 <> 0 THEN
				RAISE serialization_failure;
			END IF;
			RETURN NULL;
		END $$`)
	for _, table := range []string{
		"record", "operation", "late_completion", "external_event", "audit", "execution", "delivery",
	} {
		exec(t, admin, fmt.Sprintf(`CREATE CONSTRAINT TRIGGER conflict AFTER INSERT OR UPDATE OR DELETE ON onceward_%s
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()`, table))
	}
	claim := own(t, s, called("key", "POST /new"))
	must(t, s.Extend(t.Context(), claim, time.Minute))
	complete(t, s, claim, "done")
	wantReplay(t, s, "key", "done", "I3")
	must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{Claim: claim, At: time.Now()}))
	must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: claim.ID, Actor: "alice", Action: "look", At: time.Now()}))
	must(t, s.AddExecution(t.Context(), store.ExecutionEntry{ID: claim.ID, Actor: "alice", At: time.Now()}))
	added, err := s.AddExternalEvent(t.Context(), store.ExternalEvent{Source: "bank", EventID: "1", At: time.Now()})
	if err != nil || !added {
		t.Errorf("an event was added: %t (%v)", added, err)
	}
	lost := own(t, s, called("lost", "POST /new"))
	must(t, s.Extend(t.Context(), lost, time.Microsecond))
	if n, err := s.Sweep(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("%d records were swept (%v)", n, err)
	}
	for table, want := range map[string]int{"late_completion": 1, "external_event": 1, "audit": 1, "execution": 1} {
		if n := number(t, admin, `SELECT count(*) FROM onceward_`+table); n != want {
			t.Errorf("%d rows in %s, want %d", n, table, want)
		}
	}
}

// TestProgramsOfBothKinds: a program that relies on rows and one that relies on advisory locks keep each other out
// where those exclude, as during a deploy that chooses rows.
func TestProgramsOfBothKinds(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	byRows, byLocks := s.nodes(t, pgxHandle, 2, postgres.WithRowLocks()), s.store(t, pgxHandle, s.url)
	for _, pair := range [][2]*postgres.Store{{byRows[0], byLocks}, {byLocks, byRows[0]}, {byRows[0], byRows[1]}} {
		key := fmt.Sprintf("%p %p", pair[0], pair[1])
		v, err := pair[0].Transact(t.Context(), booking(key), func(ctx context.Context, _ store.Verdict) store.Settlement {
			other, err := pair[1].Transact(t.Context(), booking(key), committing("twice", nothing))
			if err != nil || other.Decision != store.DecisionInProgress {
				t.Errorf("I1: while one is under way, another was told %s (%v)", other.Decision, err)
			}
			waited := make(chan error, 1)
			go func() { waited <- pair[1].Wait(t.Context(), accountID(key), 0) }()
			select {
			case err := <-waited:
				t.Errorf("it did not wait: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			return committing("once", nothing)(ctx, store.Verdict{})
		})
		if err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("it was told %s (%v)", v.Decision, err)
		}
		must(t, pair[1].Wait(t.Context(), accountID(key), 0))
		again, err := pair[1].Transact(t.Context(), booking(key), committing("twice", nothing))
		if err != nil || again.Decision != store.DecisionReplay {
			t.Errorf("I3: the next one was told %s (%v)", again.Decision, err)
		}
	}
}

// TestProgramInDoubt: a program that cannot find out whether locks exclude, because its pooler has one connection for
// all, and one that has found that they do not keep each other out.
func TestProgramInDoubt(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a pooler")
	database := changedDatabase(t, withIdleLocks())
	sure := openStore(t, database)
	narrow := servers.NewPgBouncer(t, database, "default_pool_size=1")
	book, logging := newLogbook()
	unsure, err := postgres.Open(t.Context(), narrow.URL(), logging)
	must(t, err)
	defer func() { must(t, unsure.Close()) }()
	if found := unsure.Behaviour(); found.Doubt == "" || !found.RowLocks {
		t.Errorf("it found %+v", found)
	}
	if said := book.find("could not be found out"); len(said) != 1 {
		t.Errorf("it warned %q", said)
	}
	for name, pair := range map[string][2]*postgres.Store{"unsure": {unsure, sure}, "sure": {sure, unsure}} {
		v, err := pair[0].Transact(t.Context(), booking(name), func(ctx context.Context, v store.Verdict) store.Settlement {
			other, err := pair[1].Transact(t.Context(), booking(name), committing("twice", nothing))
			if err != nil || other.Decision != store.DecisionInProgress {
				t.Errorf("I1: while one that is %s is under way, another was told %s (%v)", name, other.Decision, err)
			}
			return committing("once", nothing)(ctx, v)
		})
		if err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("it was told %s (%v)", v.Decision, err)
		}
	}
}

// TestNamesWhereLocksDoNothing: the lock of a name keeps transactions apart, in every way to take it, and where it
// cannot it says so.
func TestNamesWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	address := changedDatabase(t, withIdleLocks())
	pool := openAdmin(t, address)
	stores := []*postgres.Store{openStore(t, address), openStore(t, address)}
	var inside, most atomic.Int64
	crowd(t.Context(), 6, func(ctx context.Context, i int) {
		s := stores[i%2]
		err := s.InTx(ctx, func(ctx context.Context) error {
			take := func() error { return postgres.LockName(ctx, postgres.Tx(ctx), "order 7") }
			if i%3 == 0 {
				take = func() error { return s.LockNameTx(ctx, postgres.Tx(ctx), "order 7") }
			}
			if err := errors.Join(take(), take()); err != nil { // a second time does no harm
				return err
			}
			now := inside.Add(1)
			defer inside.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})()
	if n := most.Load(); n != 1 {
		t.Errorf("%d transactions had the lock of one name at once", n)
	}
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer func() { must(t, tx.Rollback(context.Background())) }()
	if err := postgres.LockName(t.Context(), tx, "order 7"); err == nil || !strings.Contains(err.Error(), "do nothing") {
		t.Errorf("a lock that excludes no one was taken: %v", err)
	}
	must(t, stores[0].LockNameTx(t.Context(), tx, "order 7"))
}

// TestOrderWhereLocksDoNothing: the second of two transactions that add a message of one aggregate waits for the first,
// so that the numbers of messages are in the order of commits.
func TestOrderWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	address := changedDatabase(t, withIdleLocks())
	admin := openAdmin(t, address)
	first, second := openStore(t, address), openStore(t, address)
	add := func(ctx context.Context, s *postgres.Store, name string) error {
		box, err := outbox.New(s, outbox.Config{})
		if err != nil {
			return err
		}
		_, err = postgres.AddMessage(ctx, box, postgres.Tx(ctx), outbox.Message{
			Topic: "orders", AggregateType: "order", AggregateID: "7", Type: name, Payload: []byte(name),
		})
		return err
	}
	done := make(chan error, 1)
	must(t, first.InTx(t.Context(), func(ctx context.Context) error {
		if err := add(ctx, first, "paid"); err != nil {
			return err
		}
		go func() {
			done <- second.InTx(context.Background(), func(ctx context.Context) error { return add(ctx, second, "shipped") })
		}()
		await.That(t, "the other one waits", func() bool {
			return number(t, admin, `SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted
				AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) == 1
		})
		return nil
	}))
	must(t, await.Value(t, "the other one's end", done))
	claimed, err := second.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "orders", Limit: 10}}, time.Minute)
	must(t, err)
	if len(claimed) != 2 || claimed[0].Type != "paid" || claimed[1].Type != "shipped" {
		t.Errorf("O2: %d messages are due, %+v; want both, in the order of commits", len(claimed), claimed)
	}
}

// TestMigrationsWhereLocksDoNothing: processes that make the tables at the same time all end up with them.
func TestMigrationsWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	for name, address := range map[string]string{
		"do nothing": changedDatabase(t, withIdleLocks()), "are missing": changedDatabase(t, withoutLocks),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened := make(chan error, 6)
			for range cap(opened) {
				go func() {
					s, err := postgres.Open(context.Background(), address, quiet)
					if err == nil {
						err = s.Close()
					}
					opened <- err
				}()
			}
			for range cap(opened) {
				if err := await.Value(t, "the store", opened); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestJournalsWhereLocksDoNothing: callers that open their journals at the same time all have one.
func TestJournalsWhereLocksDoNothing(t *testing.T) {
	t.Parallel()
	nightly.Only(t, variant)
	for name, changes := range map[string][]string{"do nothing": withIdleLocks(), "are missing": withoutLocks} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := changedDatabase(t, changes)
			opened := make(chan error, 4)
			for range cap(opened) {
				go func() {
					j, err := postgres.OpenJournal(context.Background(), address)
					if err == nil {
						err = j.Close()
					}
					opened <- err
				}()
			}
			for range cap(opened) {
				if err := await.Value(t, "the journal", opened); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRowLocksNeedRights: a user who may not write to the table of locks is told so when the store is opened.
func TestRowLocksNeedRights(t *testing.T) {
	t.Parallel()
	address := servers.Postgres(t).SchemaURL(t)
	admin := openAdmin(t, address)
	openStore(t, address)
	parsed, err := url.Parse(address)
	must(t, err)
	schema := parsed.Query().Get("search_path")
	role, as := userRole(t, admin, schema)
	for _, grant := range grants {
		exec(t, admin, `GRANT `+strings.ReplaceAll(grant, "@schema", schema)+` TO `+role)
	}
	exercise(t, openStore(t, as, postgres.WithRowLocks()), "key")
	exec(t, admin, `REVOKE ALL ON onceward_lock FROM `+role)
	exercise(t, openStore(t, as), "another key")
	wantOpenFails(t, as, "GRANT SELECT, INSERT, DELETE", postgres.WithRowLocks())
}
