package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Scenario 37: fail-over to a standby and back. While only a standby can be reached nothing is executed; what a
// connection or a pool has learned of that is forgotten as soon as it is not so any more, however busy the traffic
// keeps it.

// cluster is two servers, of which one follows the other, behind one address.
type cluster struct {
	*testing.T
	primary, standby *servers.PostgresServer
	proxy            *servers.Proxy
	store            *postgres.Store
	handle           handle
}

func newCluster(t *testing.T, h handle) *cluster {
	t.Helper()
	c := &cluster{T: t, primary: servers.NewPostgres(t), handle: h}
	c.standby = c.primary.NewStandby(t)
	c.proxy = servers.NewProxy(t, c.primary.URL())
	must(t, c.primary.Exec(t.Context(), `CREATE TABLE business (value TEXT NOT NULL)`))
	store, closeHandle := h.open(t, c.proxy.URL())
	t.Cleanup(func() {
		must(t, store.Close())
		closeHandle()
	})
	c.store = store
	return c
}

// lead moves the address. Connections that exist stay where they are.
func (c *cluster) lead(to *servers.PostgresServer) {
	c.Helper()
	must(c, c.proxy.Retarget(to.URL()))
}

// failOver makes the standby the primary, and the old primary its standby.
func (c *cluster) failOver() {
	c.Helper()
	must(c, c.primary.Stop())
	must(c, c.standby.Promote(c.Context()))
	c.primary, c.standby = c.standby, c.primary
}

// call is one way to use a store; each has a key of its own.
type call func(ctx context.Context, c *cluster, key string) error

// waysIn are those that a store answers on connections of handlers, and on its own.
var waysIn = map[string]call{
	"Transact": func(ctx context.Context, c *cluster, key string) error {
		p := &payer{handle: c.handle, value: key}
		v, err := c.store.Transact(ctx, booking(key), p.work)
		if err == nil && v.Decision != store.DecisionExecute && v.Decision != store.DecisionReplay {
			err = fmt.Errorf("decided %s", v.Decision)
		}
		return err
	},
	"InTx": func(ctx context.Context, c *cluster, key string) error {
		return c.store.InTx(ctx, func(ctx context.Context) error { return c.handle.insert(ctx, key) })
	},
	"CheckpointTx": func(ctx context.Context, c *cluster, key string) error {
		v, err := c.store.Reserve(ctx, booking(key))
		if err != nil {
			return err
		}
		claim := store.Claim{ID: accountID(key), Attempt: v.Record.Attempt}
		return c.store.CheckpointTx(ctx, claim, time.Minute, func(ctx context.Context) (store.Checkpoint, error) {
			return store.Checkpoint{Point: "paid"}, c.handle.insert(ctx, key)
		})
	},
	"Reserve and Complete": func(ctx context.Context, c *cluster, key string) error {
		v, err := c.store.Reserve(ctx, booking(key))
		if err != nil {
			return err
		}
		done := &store.Completion{Response: store.Response{Status: http.StatusCreated}}
		_, err = c.store.Complete(ctx, store.Claim{ID: accountID(key), Attempt: v.Record.Attempt}, done)
		return err
	},
	"Get": func(ctx context.Context, c *cluster, _ string) error {
		_, err := c.store.Get(ctx, accountID("first"))
		return err
	},
	"Stats": func(ctx context.Context, c *cluster, _ string) error {
		_, err := c.store.Stats(ctx)
		return err
	},
	"Sweep": func(ctx context.Context, c *cluster, _ string) error {
		_, err := c.store.Sweep(ctx, 1)
		return err
	},
	"Bust": func(ctx context.Context, c *cluster, key string) error {
		if err := c.store.Bust(ctx, accountID(key), true); !errors.Is(err, store.ErrNotFound) {
			return err
		}
		return nil
	},
}

// traffic calls a store without a pause, several times at once in each way.
type traffic struct {
	refused map[string]*atomic.Int64
	stop    context.CancelFunc
	running sync.WaitGroup
}

func (c *cluster) startTraffic(until string) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	t := &traffic{refused: make(map[string]*atomic.Int64), stop: cancel}
	for name, do := range waysIn {
		refused := new(atomic.Int64)
		t.refused[name] = refused
		for worker := range 2 {
			t.running.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					if err := c.try(do, fmt.Sprintf("%s %d of %d until %s", name, i, worker, until)); err != nil {
						refused.Add(1)
						time.Sleep(10 * time.Millisecond) // two cores for two servers and this
					}
				}
			})
		}
	}
	return t
}

// try makes one call in more time than a guard gives.
func (c *cluster) try(do call, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
	defer cancel()
	return do(ctx, c, key)
}

func (t *traffic) end() {
	t.stop()
	t.running.Wait()
}

// awaitRefusals waits until each way has been refused often, so that every pool knows only the standby.
func (t *traffic) awaitRefusals(c *cluster) {
	c.Helper()
	for name, refused := range t.refused {
		from := refused.Load()
		await.That(c, name+" is refused", func() bool { return refused.Load() >= from+10 })
	}
}

// wantServed checks that each way is served by the first call from now on.
func (c *cluster) wantServed(when string) {
	c.Helper()
	for name, do := range waysIn {
		if err := c.try(do, name+" "+when); err != nil {
			c.Errorf("scenario 37: %s, and the next %s got %v, want it to be served", when, name, err)
		}
	}
}

// outage has the address lead to the standby while everyone calls, until something mends it; then everyone is served.
func (c *cluster) outage(mended string, mend func()) {
	c.Helper()
	must(c, c.primary.AwaitStandby(c.Context(), c.standby))
	c.lead(c.standby)
	c.proxy.DropAll()
	busy := c.startTraffic(mended)
	defer busy.end()
	busy.awaitRefusals(c)
	mend()
	c.wantServed(mended)
}

// TestFailOverAndBackUnderTraffic has the address lead to a standby and back to the primary, and then lead to
// standbys that are promoted. TestFailOverAmongHosts is less, and always run.
func TestFailOverAndBackUnderTraffic(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	for _, h := range bothHandles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, h)
			must(t, c.try(waysIn["Transact"], "first"))
			c.outage("the address leads to the primary again", func() { c.lead(c.primary) })
			for _, when := range []string{"the standby was promoted", "the first server was promoted again"} {
				c.outage(when, c.failOver)
				must(t, c.standby.Follow(c.primary))
			}
			c.wantNothingTwice()
		})
	}
}

// wantNothingTwice checks that no key has two rows.
func (c *cluster) wantNothingTwice() {
	c.Helper()
	admin := openAdmin(c, c.primary.URL())
	if n := number(c, admin,
		`SELECT count(*) FROM (SELECT FROM business GROUP BY value HAVING count(*) > 1) AS doubled`); n != 0 {
		c.Errorf("I1: %d keys were executed more than once", n)
	}
}

// TestOutageIsNotAStormOfConnections: where the address leads is found out for all who ask at once by one connection
// (scenario 47).
func TestOutageIsNotAStormOfConnections(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	c := newCluster(t, pgxHandle)
	must(t, c.try(waysIn["Transact"], "first"))
	must(t, c.primary.AwaitStandby(t.Context(), c.standby))
	c.lead(c.standby)
	c.proxy.DropAll()
	const callers, each = 16, 25
	var crowd sync.WaitGroup
	before := c.proxy.Connections()
	for caller := range callers {
		crowd.Go(func() {
			for i := range each {
				wantNotExecuted(t, c.try(waysIn["Transact"], fmt.Sprint(caller, " ", i)), "scenario 13")
			}
		})
	}
	crowd.Wait()
	if n := c.proxy.Connections() - before; n > callers*each/2 {
		t.Errorf("scenario 47: %d requests that were refused made %d connections", callers*each, n)
	}
	c.lead(c.primary)
	if err := c.try(waysIn["Transact"], "last"); err != nil {
		t.Errorf("scenario 37: the address leads to the primary again, and the next request got %v", err)
	}
}

// TestCommitLostInAFailOver loses the reply to a COMMIT while the address leads to a standby, which cannot tell what
// became of it. It is found out as soon as the one that can tell is there.
func TestCommitLostInAFailOver(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts servers of its own")
	back := map[string]func(c *cluster){
		"the address moves back":   func(c *cluster) { c.lead(c.primary) },
		"the standby was promoted": func(c *cluster) { c.failOver() },
	}
	for name, recover := range back {
		for _, kind := range []string{"Transact", "CheckpointTx"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, pgxHandle)
				must(t, c.try(waysIn[kind], "warm"))
				admin := openAdmin(t, c.standby.URL())
				c.proxy.CutReply(isCommit)
				c.lead(c.standby)
				done := make(chan error, 1)
				go func() { done <- c.try(waysIn[kind], "paid") }()
				awaitCaught(t, c.proxy, 1)
				await.That(t, "the standby is asked", func() bool {
					return number(t, admin,
						`SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`) > 0
				})
				recover(c)
				if err := await.Value(t, "the outcome", done); err != nil {
					t.Errorf("scenario 37: the owner got %v, want the answer", err)
				}
				if n := number(t, openAdmin(t, c.primary.URL()), `SELECT count(*) FROM business WHERE value = 'paid'`); n != 1 {
					t.Errorf("I1: there are %d rows, want 1", n)
				}
			})
		}
	}
}
