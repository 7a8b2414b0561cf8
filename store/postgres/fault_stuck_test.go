package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// Something is stuck: a record is locked by somebody who does not go on, a connection is silent, the server is frozen. That
// may cost the one request that meets it, for a bounded time, and nobody else.

// stuck makes a heartbeat of a store get stuck, and returns how to let go.
type stuck func(t *testing.T, s *site, proxy *servers.Proxy, store *postgres.Store, key string) (letGo func())

var waysToGetStuck = map[string]stuck{
	"the record is locked": func(t *testing.T, s *site, _ *servers.Proxy, store *postgres.Store, key string) func() {
		tx, err := s.admin.Begin(t.Context())
		must(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM onceward_record WHERE id = $1::uuid FOR UPDATE`, store.RecordID(accountID(key)))
		must(t, err)
		return func() { _ = tx.Rollback(context.Background()) }
	},
	"the connection is silent": func(_ *testing.T, _ *site, proxy *servers.Proxy, _ *postgres.Store, _ string) func() {
		return proxy.HoldReply(ofStore)
	},
}

// TestStuckRequestHoldsUpNobodyElse has one heartbeat stuck, and others ask for other keys in the time that a guard gives.
func TestStuckRequestHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	for name, getStuck := range waysToGetStuck {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			proxy := servers.NewProxy(t, s.url)
			st := s.store(t, pgxHandle, proxy.URL())
			v, err := st.Reserve(t.Context(), booking("stuck"))
			must(t, err)
			sent := counting(proxy)
			letGo := getStuck(t, s, proxy, st, "stuck")
			extended := make(chan error, 1)
			go func() {
				extended <- st.Extend(context.Background(), store.Claim{ID: accountID("stuck"), Attempt: v.Record.Attempt}, time.Minute)
			}()
			eventually(t, "the heartbeat is under way", 10*time.Second, func() bool { return sent.Load() > 0 })
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // what a guard gives to the store
			defer cancel()
			if v, err := st.Reserve(ctx, booking("another")); err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("another key got (%s, %v), want the right to execute", v.Decision, err)
			}
			letGo()
			must(t, await(t, "the end of the heartbeat", extended))
		})
	}
}

// TestStoppedInMidChangeLosesItsLock has a store stop while it holds the lock of a record's row, as a process that is stopped
// or cut off would. E8: no path leaves a key locked past its lease, but for a bounded time of idleness.
func TestStoppedInMidChangeLosesItsLock(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	stopped, other := s.store(t, pgxHandle, proxy.URL()), s.store(t, pgxHandle, s.url)
	r := booking("key")
	r.Lease = time.Second
	v, err := stopped.Reserve(t.Context(), r)
	must(t, err)
	goOn := proxy.HoldReply(matching(`FOR UPDATE`))
	released := make(chan error, 1)
	go func() {
		released <- stopped.Release(context.Background(), store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, "never mind")
	}()
	awaitCaught(t, proxy, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for v.Decision != store.DecisionUnknown {
		if v, err = other.Reserve(ctx, booking("key")); ctx.Err() != nil {
			t.Errorf("E8: the lease is over, and a retry got (%s, %v) to the last", v.Decision, err)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	goOn()
	if err := await(t, "the end of the release", released); err == nil && v.Decision == store.DecisionUnknown {
		t.Error("S6: the release landed although the record was unknown by then")
	}
}

// TestFrozenServer has a server accept and not answer. A transaction that has not begun ends with the caller's time, on a
// connection that was used before and on one that is new to the store.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	server := servers.NewPostgres(t)
	for name, used := range map[string]bool{"used connection": true, "new connection": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, server)
			config, err := pgxpool.ParseConfig(s.url)
			must(t, err)
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			must(t, err)
			t.Cleanup(pool.Close)
			store, err := postgres.New(t.Context(), pool, quiet)
			must(t, err)
			t.Cleanup(func() { must(t, store.Close()) })
			_, err = store.Reserve(t.Context(), booking("warm"))
			must(t, err)
			must(t, pool.Ping(t.Context()))
			if used {
				p := &payer{handle: pgxHandle, value: "warm"}
				_, err := store.Transact(t.Context(), booking("before"), p.work)
				must(t, err)
			}
			must(t, server.Pause())
			ended := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				defer cancel()
				p := &payer{handle: pgxHandle, value: "paid"}
				_, err := store.Transact(ctx, booking("key"), p.work)
				ended <- err
			}()
			select {
			case err = <-ended:
			case <-time.After(5 * time.Second):
				t.Error("the transaction did not end with the caller's time")
			}
			must(t, server.Resume())
			if err == nil {
				err = await(t, "the end of the transaction", ended)
			}
			wantNotExecuted(t, err, "the server did not answer")
			s.wantRows(t, "paid", 0, "I4")
		})
	}
}
