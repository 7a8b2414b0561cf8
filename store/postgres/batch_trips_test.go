package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// tripping counts the round trips of single calls, after others of the same kind have prepared their statements.
type tripping struct {
	*testing.T
	store  *postgres.Store
	proxy  *servers.Proxy
	claims map[string]store.Claim
}

func newTripping(t *testing.T) *tripping {
	s, proxy := openProxied(t)
	return &tripping{T: t, store: s, proxy: proxy, claims: make(map[string]store.Claim)}
}

// want prepares and calls a few times to warm up, and then counts what the calls cost.
func (c *tripping) want(want int, name string, prepare, call func(key string)) {
	c.Helper()
	const warm, counted = 8, 8
	for i, key := range keys(name, warm+counted) {
		if prepare != nil {
			prepare(key)
		}
		before := c.proxy.RoundTrips()
		call(key)
		if got := c.proxy.RoundTrips() - before; got != want && i >= warm {
			c.Errorf("%s: call %d took %d round trips, want %d", name, i, got, want)
			return
		}
	}
}

func (c *tripping) own(key string)      { c.claims[key] = own(c, c.store, reservation(key)) }
func (c *tripping) complete(key string) { complete(c, c.store, c.claims[key], key) }

func (c *tripping) settled(key string) {
	c.own(key)
	c.complete(key)
}

func (c *tripping) released(key string) {
	c.own(key)
	must(c, c.store.Release(c.Context(), c.claims[key], "no stock"))
}

// TestRoundTrips: a call that is alone costs one round trip.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	c := newTripping(t)
	c.want(1, "a reservation", nil, c.own)
	c.want(1, "a heartbeat", c.own, func(key string) { must(t, c.store.Extend(t.Context(), c.claims[key], time.Minute)) })
	c.want(1, "a completion", c.own, c.complete)
	c.want(1, "a replay", c.settled, func(key string) { wantReplay(t, c.store, key, key, "I3") })
	c.want(1, "a duplicate", c.own, func(key string) {
		if v, err := c.store.Reserve(t.Context(), reservation(key)); err != nil || v.Decision != store.DecisionInProgress {
			t.Errorf("a duplicate got (%s, %v)", v.Decision, err)
		}
	})
	c.want(1, "a retry", c.released, c.own)
	c.want(1, "a look", c.settled, func(key string) { wantState(t, c.store, key, store.StateCompleted, "section 11") })
}

// TestRoundTripsOfTransactions: the claim rides with BEGIN, and the answer with COMMIT.
func TestRoundTripsOfTransactions(t *testing.T) {
	t.Parallel()
	c := newTripping(t)
	transact := func(f func(ctx context.Context) error) func(string) {
		return func(key string) { transacted(t, c.store, key, f) }
	}
	c.want(2, "a transaction that does nothing", nil, transact(nothing))
	c.want(3, "a transaction with a statement", nil, transact(func(ctx context.Context) error {
		_, err := postgres.Tx(ctx).Exec(ctx, `SELECT 1`)
		return err
	}))
	c.want(3, "a transaction with a statement of database/sql", nil, transact(func(ctx context.Context) error {
		_, err := onceward.Tx(ctx).ExecContext(ctx, `SELECT 1`)
		return err
	}))
	c.want(2, "a transaction over a released record", c.released, transact(nothing))
	c.want(1, "a replay through Reserve", transact(nothing), func(key string) { wantReplay(t, c.store, key, key, "I3") })
}
