package stores_test

import (
	"context"
	"io"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
	"github.com/onceward/onceward/store/tiered"
	"github.com/onceward/onceward/storeurl"
)

// counter counts what the front answers. That is for the tests: a suite that never met the front would show nothing.
type counter struct{ hits, looks atomic.Int64 }

func (c *counter) Observe(_ context.Context, e onceward.ObserverEvent) {
	if looked, ok := e.(tiered.LookedUpEvent); ok {
		c.looks.Add(1)
		if looked.Hit {
			c.hits.Add(1)
		}
	}
}

func (c *counter) check(t *testing.T) {
	t.Helper()
	t.Logf("the front answered %d of %d look-ups", c.hits.Load(), c.looks.Load())
	if c.hits.Load() == 0 {
		t.Error("the front has not answered once: the suite has shown nothing")
	}
}

// eagerFront is a store whose fills have arrived when a reservation returns, so that the suite, which asks once or
// twice, meets the front.
type eagerFront struct {
	*tiered.Store
	front *filled
}

func (s eagerFront) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	v, err := s.Store.Reserve(ctx, r)
	if err != nil || v.Decision != store.DecisionReplay {
		return v, err
	}
	s.front.await(ctx, r.ID)
	return s.Store.Reserve(ctx, r)
}

// filled is a front of which it is known when a fill has arrived.
type filled struct{ tiered.Front }

func (f *filled) Close() error {
	if closer, ok := f.Front.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// await waits a little for a fill; it may have been refused.
func (f *filled) await(ctx context.Context, id store.ID) {
	for range 20 {
		if value, err := f.Get(ctx, id); len(value) > 0 || err != nil {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// stack puts a front before a store.
func stack(t testing.TB, durable store.Store, front tiered.Front, config tiered.Config) eagerFront {
	t.Helper()
	config.Logger = quiet
	watched := &filled{front}
	s, err := tiered.New(durable, watched, config)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return eagerFront{s, watched}
}

// TestFrontsOverMemory runs all of the suite on a store and a front in memory, with one clock that stands still.
func TestFrontsOverMemory(t *testing.T) {
	t.Parallel()
	var count counter
	storetest.Run(t, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
		clock, advance := stoppedClock()
		front := tiered.NewMemory(tiered.MemoryConfig{Clock: clock})
		return storetest.Instance{
			Store:   stack(t, memory.New(memory.WithClock(clock)), front, tiered.Config{Observer: &count, Clock: clock}),
			Advance: advance,
		}
	}})
	count.check(t)
}

func stoppedClock() (now func() time.Time, advance func(time.Duration)) {
	var clock atomic.Int64
	clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return func() time.Time { return time.UnixMicro(clock.Load()).UTC() },
		func(d time.Duration) { clock.Add(d.Microseconds()) }
}

// TestFrontsOverSQLite runs the suite on SQLite behind a front in memory.
func TestFrontsOverSQLite(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	var count counter
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance {
			clock, advance := stoppedClock()
			url := "sqlite:" + filepath.Join(t.TempDir(), "onceward.db")
			front := func() tiered.Front { return tiered.NewMemory(tiered.MemoryConfig{Clock: clock}) }
			instance := behindFront(t, url, front, tiered.Config{Observer: &count, Clock: clock}, storeurl.WithClock(clock))
			instance.Advance = advance
			return instance
		},
	})
	count.check(t)
}

// TestFrontsOverPostgres runs the suite on PostgreSQL behind a front on Redis.
func TestFrontsOverPostgres(t *testing.T) {
	t.Parallel()
	nightly.Only(t, conformanceOfWrappers)
	var count counter
	server := servers.Redis(t)
	storetest.Run(t, storetest.Harness{
		// What a front says of the durable store's clock is off by as long as the look-up took that filled it.
		Features: storetest.Features{ConcurrentTx: true, Resolution: 10 * time.Millisecond},
		Open: func(t testing.TB) storetest.Instance {
			prefix := server.Prefix(t)
			front := func() tiered.Front { return openFront(t, server.URL(), prefix) }
			return behindFront(t, servers.Postgres(t).SchemaURL(t)+"&pool_max_conns=8", front, tiered.Config{Observer: &count})
		},
	})
	count.check(t)
}

// behindFront opens a database behind a front, with a table of the application.
func behindFront(
	t testing.TB, url string, front func() tiered.Front, config tiered.Config, options ...storeurl.Option,
) storetest.Instance {
	t.Helper()
	var db *storeurl.Database
	open := func(t testing.TB) eagerFront {
		var err error
		db, err = storeurl.Open(context.Background(), url, append(options, storeurl.WithLogger(quiet))...)
		must(t, err)
		return stack(t, db, front(), config)
	}
	s := open(t)
	must(t, s.InTx(context.Background(), func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `CREATE TABLE business (value TEXT)`)
		return err
	}))
	return storetest.Instance{
		Store: s,
		Reopen: func(t testing.TB) store.Store {
			must(t, s.Close())
			s = open(t)
			return s
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

// openFront opens a front on Redis, and waits until it knows the time.
func openFront(t testing.TB, url, prefix string) *redis.Front {
	t.Helper()
	f, err := redis.OpenFront(context.Background(), url, redis.WithPrefix(prefix))
	must(t, err)
	await.That(t, "the front knows the time", func() bool { return !f.Now().IsZero() })
	return f
}
