package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Servers that speak PostgreSQL's protocol and do not do all that PostgreSQL does, made of PostgreSQL itself: functions
// are replaced in a database, or a proxy reads statements differently. And poolers.

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

// withoutListen refuses statements that listen, as a server does that has no notifications.
func withoutListen(proxy *servers.Proxy) {
	proxy.Deny(func(sql string) bool { return strings.Contains(sql, "LISTEN ") }, "0A000")
}

// serializableURL makes that the default of a database's transactions.
func serializableURL(address string) string {
	return address + "&default_transaction_isolation=serializable"
}

// variant is why the suite runs on them at night.
const variant = "it is another manner of server, on which TestStore runs"

// TestStoreOnSerializableDatabase and those that follow run the suite where sessions or transactions are set up otherwise.
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

// TestServersThatAreRefused: a server that does not keep what the store rests on is refused when the store is opened,
// with the reason.
func TestServersThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]struct {
		url  func(testing.TB) string
		want string
	}{
		"advisory locks that do not exclude": {
			url:  func(t testing.TB) string { return newLocklessSite(t, "read committed").url },
			want: "hold the same advisory lock",
		},
		"no advisory locks": {
			url:  func(t testing.TB) string { return changedDatabase(t, withoutLocks) },
			want: "the store needs advisory locks and notifications",
		},
		"no notifications": {
			url:  func(t testing.TB) string { return changedDatabase(t, withoutNotifications) },
			want: "the store needs advisory locks and notifications",
		},
		"no listening": {
			url: func(t testing.TB) string {
				url, _ := behindProxy(withoutListen)(t, t)
				return url
			},
			want: "the store needs advisory locks and notifications",
		},
		"transactions that are always serializable": {
			url: func(t testing.TB) string {
				url, _ := behindProxy(alwaysSerializable)(t, t)
				return url
			},
			want: "its transactions are serializable although they ask for read committed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := postgres.Open(t.Context(), each.url(t), quiet)
			if !errors.Is(err, postgres.ErrServer) || !strings.Contains(err.Error(), each.want) {
				t.Errorf("it was opened: %v, want %q", err, each.want)
			}
		})
	}
}

// TestServerThatCannotBeChecked: behind a pooler that has one connection for all the trial cannot be made. The program says
// what it knows, or is refused.
func TestServerThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a pooler, and waits for it for ten seconds")
	narrow := servers.NewPgBouncer(t, databaseURL(t), "default_pool_size=1").URL()
	wantOpenFails(t, narrow, "WithAdvisoryLocks skips the check")
	exercise(t, openStore(t, narrow, postgres.WithAdvisoryLocks()), "key")
}

// TestCheckCosts: the check of the server takes three round trips.
func TestCheckCosts(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	openStore(t, url)
	once := func(options ...postgres.Option) int {
		proxy := servers.NewProxy(t, url)
		// What listens does its part when it likes.
		s, err := postgres.Open(t.Context(), proxy.URL(), append(options, quiet, postgres.WithListenURL(url))...)
		must(t, err)
		defer func() { must(t, s.Close()) }()
		await.That(t, "it listens", s.HearsMessages)
		return proxy.RoundTrips()
	}
	trips := func(options ...postgres.Option) int { // the least, because a connection more may be made meanwhile
		least := once(options...)
		for range 4 {
			least = min(least, once(options...))
		}
		return least
	}
	if with, without := trips(), trips(postgres.WithAdvisoryLocks()); with-without != 3 {
		t.Errorf("opening took %d round trips, and %d without: the difference is to be 3", with, without)
	}
}

// TestNewKeysWhereAllIsStricter: where a database makes every transaction serializable, or repeats reads, nodes that
// meet new keys at the same moment serve them.
func TestNewKeysWhereAllIsStricter(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable%20read"} {
		t.Run(level, func(t *testing.T) {
			url := servers.Postgres(t).SchemaURL(t) + "&default_transaction_isolation=" + level
			nodes := []*postgres.Store{openStore(t, url), openStore(t, url), openStore(t, url), openStore(t, url)}
			for round := range 20 {
				ended := crowd(t.Context(), 2*len(nodes), func(ctx context.Context, i int) {
					r := reservation(fmt.Sprint(round, " ", i))
					var err error
					if i%2 == 0 {
						_, err = nodes[i/2].Reserve(ctx, r)
					} else {
						_, err = nodes[i/2].Transact(ctx, r, committing("done", nothing))
					}
					if err != nil {
						t.Errorf("a new key was refused: %v", err)
					}
				})
				ended()
			}
		})
	}
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
		"record", "late_completion", "external_event", "audit", "execution", "delivery",
	} {
		exec(t, admin, fmt.Sprintf(`CREATE CONSTRAINT TRIGGER conflict AFTER INSERT OR UPDATE OR DELETE ON onceward_%s
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()`, table))
	}
	claim := own(t, s, reservation("key"))
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
	lost := own(t, s, reservation("lost"))
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
