package stores_test

import (
	"context"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/breaker"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sealed"
	"github.com/onceward/onceward/store/storetest"
	"github.com/onceward/onceward/store/tiered"
	"github.com/onceward/onceward/storeurl"
)

// layer puts a wrapper around a store.
type layer func(t testing.TB, inside store.Store) store.Store

// stacked puts wrappers around a store, the innermost first.
func stacked(t testing.TB, inside store.Store, layers []layer) store.Store {
	t.Helper()
	for _, around := range layers {
		inside = around(t, inside)
	}
	return inside
}

// broken is a circuit breaker. A machine that is busy does not open it.
func broken(t testing.TB, inside store.Store) store.Store {
	t.Helper()
	s, err := breaker.New(inside, breaker.Config{SlowCall: time.Minute, Logger: quiet})
	must(t, err)
	return s
}

var sealedConfig = sealed.Config{Keys: []sealed.Key{{ID: 1, Secret: []byte("thirty-two bytes that are secret")}}}

func sealedWith(t testing.TB, inside store.Store) store.Store {
	t.Helper()
	s, err := sealed.New(inside, sealedConfig)
	must(t, err)
	return s
}

// fronted puts a front before a store.
func fronted(front func(t testing.TB) tiered.Front, config tiered.Config) layer {
	return func(t testing.TB, inside store.Store) store.Store {
		t.Helper()
		config.Logger = quiet
		f := &filled{front(t)}
		s, err := tiered.New(inside, f, config)
		must(t, err)
		return eagerFront{s, f}
	}
}

// stackedDatabase opens a database with wrappers around it, and with a table of the application.
func stackedDatabase(t testing.TB, url string, layers []layer, options ...storeurl.Option) storetest.Instance {
	t.Helper()
	var db *storeurl.Database
	var s store.Store
	open := func(t testing.TB) store.Store {
		var err error
		db, err = storeurl.Open(context.Background(), url, append(options, storeurl.WithLogger(quiet))...)
		must(t, err)
		s = stacked(t, db, layers)
		return s
	}
	open(t)
	t.Cleanup(func() { _ = s.(io.Closer).Close() }) // a test may have closed it
	must(t, db.InTx(context.Background(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE business (value TEXT)`)
		return err
	}))
	return storetest.Instance{
		Store: s,
		Reopen: func(t testing.TB) store.Store {
			must(t, s.(io.Closer).Close())
			return open(t)
		},
		Business: &storetest.Business{
			Insert: func(ctx context.Context, value string) error {
				_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO business (value) VALUES ($1)`, value)
				return err
			},
			Count: func(value string) (n int) {
				must(t, db.Reads().QueryRow(`SELECT count(*) FROM business WHERE value = $1`, value).Scan(&n))
				return n
			},
		},
	}
}

// onRedis opens a store on Redis with wrappers around it.
func onRedis(t testing.TB, url, prefix string, layers ...layer) storetest.Instance {
	t.Helper()
	var s store.Store
	open := func(t testing.TB) store.Store {
		inside, err := redis.Open(context.Background(), url, redis.WithPrefix(prefix), redis.WithLogger(quiet))
		must(t, err)
		s = stacked(t, inside, layers)
		return s
	}
	open(t)
	t.Cleanup(func() { _ = s.(io.Closer).Close() })
	return storetest.Instance{Store: s, Reopen: func(t testing.TB) store.Store {
		must(t, s.(io.Closer).Close())
		return open(t)
	}}
}

// run runs the suite on a stack.
func run(t *testing.T, features storetest.Features, open func(t testing.TB) storetest.Instance) {
	t.Helper()
	whole(t, open(t).Store)
	storetest.Run(t, storetest.Harness{
		Features: features, Open: open,
		Groups: servers.UnlessAllStores("Expiry", "Transactor", "Checkpointer", "OutboxAnswer", "Content"),
	})
}

// conformanceOfWrappers is the reason why most suites of stores with wrappers are nightly.
const conformanceOfWrappers = "TestFrontsOverMemory has all of the suite behind a front, TestStackOnSQLite a part " +
	"with each wrapper, and the packages of the stores all of it without"

// TestStackOnPostgres is the stack that docs/choosing-a-store.md shows: PostgreSQL with a breaker, behind a front on
// Redis, sealed.
func TestStackOnPostgres(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	var count counter
	server := servers.Redis(t)
	run(t, storetest.Features{ConcurrentTx: true},
		func(t testing.TB) storetest.Instance {
			prefix := server.Prefix(t)
			front := func(t testing.TB) tiered.Front {
				f, err := redis.OpenFront(context.Background(), server.URL(), redis.WithPrefix(prefix))
				must(t, err)
				await.That(t, "the front knows the time", func() bool { return !f.Now().IsZero() })
				return f
			}
			return stackedDatabase(t, servers.Postgres(t).SchemaURL(t)+"&pool_max_conns=8",
				[]layer{broken, fronted(front, tiered.Config{Observer: &count}), sealedWith})
		})
	count.check(t)
}

// TestStackOnSQLite is the same on one machine: SQLite with a breaker, behind a front in memory, sealed.
func TestStackOnSQLite(t *testing.T) {
	t.Parallel()
	var count counter
	run(t, storetest.Features{},
		func(t testing.TB) storetest.Instance {
			var micros atomic.Int64
			micros.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
			clock := func() time.Time { return time.UnixMicro(micros.Load()).UTC() }
			front := func(testing.TB) tiered.Front { return tiered.NewMemory(tiered.MemoryConfig{Clock: clock}) }
			instance := stackedDatabase(t, filepath.Join(t.TempDir(), "onceward.db"),
				[]layer{broken, fronted(front, tiered.Config{Observer: &count, Clock: clock}), sealedWith},
				storeurl.WithClock(clock))
			instance.Advance = func(d time.Duration) { micros.Add(d.Microseconds()) }
			return instance
		})
	count.check(t)
}

// TestStackOnRedis is Redis as the store: with a breaker inside or outside of the seal, which differ in nothing that
// the suite can see.
func TestStackOnRedis(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	server := servers.Redis(t)
	for name, layers := range map[string][]layer{
		"sealed(breaker)": {broken, sealedWith}, "breaker(sealed)": {sealedWith, broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, storetest.Features{}, func(t testing.TB) storetest.Instance {
				return onRedis(t, server.URL(), server.Prefix(t), layers...)
			})
		})
	}
}

// TestStackOnRedisCluster is a sealed cluster with a breaker, behind a front in memory that spares the network.
func TestStackOnRedisCluster(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	var count counter
	cluster := servers.SharedRedisCluster(t)
	front := func(testing.TB) tiered.Front { return tiered.NewMemory(tiered.MemoryConfig{}) }
	run(t, storetest.Features{}, func(t testing.TB) storetest.Instance {
		return onRedis(t, cluster.URL(), cluster.Name(t), broken, fronted(front, tiered.Config{Observer: &count}), sealedWith)
	})
	count.check(t)
}

// whole checks that a stack can do all that the store inside of it can.
func whole(t *testing.T, s store.Store) {
	t.Helper()
	inside := s
	for wrapper, ok := inside.(store.Wrapper); ok; wrapper, ok = inside.(store.Wrapper) {
		inside = wrapper.Unwrap()
	}
	able[store.Transactor](t, s, inside)
	able[store.TxCheckpointer](t, s, inside)
	able[store.Waiter](t, s, inside)
	able[store.Sweeper](t, s, inside)
	able[store.Reaper](t, s, inside)
	able[store.Reconciler](t, s, inside)
	able[store.Buster](t, s, inside)
	able[store.Lister](t, s, inside)
	able[store.Rewriter](t, s, inside)
	able[store.LateCompletionKeeper](t, s, inside)
	able[store.ExternalEventKeeper](t, s, inside)
	able[store.Auditor](t, s, inside)
	able[store.AuditLister](t, s, inside)
	able[store.ExecutionAuditor](t, s, inside)
	able[outbox.Store](t, s, inside)
	able[outbox.AnswerStore](t, s, inside)
	able[inbox.Store](t, s, inside)
	able[natural.Store](t, s, inside)
}

func able[T any](t *testing.T, s, inside store.Store) {
	t.Helper()
	_, is := store.As[T](s)
	if _, want := inside.(T); is != want {
		t.Errorf("%T inside is a %s: %t; the stack is: %t", inside, reflect.TypeFor[T](), want, is)
	}
}

// TestWrongOrders: an order that would break what a wrapper promises is refused, with words about the right one, also
// if there is another wrapper in between.
func TestWrongOrders(t *testing.T) {
	t.Parallel()
	front := tiered.NewMemory(tiered.MemoryConfig{})
	cached := func(t testing.TB, inside store.Store) store.Store {
		s, err := tiered.New(inside, front, tiered.Config{Logger: quiet})
		must(t, err)
		return s
	}
	aroundTiered := func(s store.Store) error { _, err := tiered.New(s, front, tiered.Config{}); return err }
	aroundBreaker := func(s store.Store) error { _, err := breaker.New(s, breaker.Config{}); return err }
	aroundSealed := func(s store.Store) error { _, err := sealed.New(s, sealedConfig); return err }
	for name, test := range map[string]struct {
		inside []layer
		around func(store.Store) error
		want   string
	}{
		"tiered(sealed)":          {[]layer{sealedWith}, aroundTiered, "put it around the tiered store"},
		"tiered(breaker(sealed))": {[]layer{sealedWith, broken}, aroundTiered, "put it around the tiered store"},
		"tiered(tiered)":          {[]layer{cached}, aroundTiered, "already has a front"},
		"breaker(tiered)":         {[]layer{cached}, aroundBreaker, "the front before the breaker"},
		"breaker(sealed(tiered))": {[]layer{cached, sealedWith}, aroundBreaker, "the front before the breaker"},
		"sealed(breaker(sealed))": {[]layer{sealedWith, broken}, aroundSealed, "sealed already"},
	} {
		err := test.around(stacked(t, memory.New(), test.inside))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error that says %q", name, err, test.want)
		}
	}
}
