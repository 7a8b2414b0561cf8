package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// isBatch matches what a store that has warmed up sends, but for what its listener says to itself.
func isBatch(sql string) bool {
	return !strings.Contains(sql, "LISTEN") && !strings.Contains(sql, "pg_notify")
}

// awaitSprung waits until the proxy has caught one more than before.
func awaitSprung(t testing.TB, proxy *servers.Proxy, before int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, proxy.AwaitSprung(ctx, before+1))
}

// holdLane keeps the one lane of a store busy, with the reservation of a key on it, until it is let go.
func holdLane(t testing.TB, store *postgres.Store, proxy *servers.Proxy, key string) (letGo func()) {
	t.Helper()
	own(t, store, reservation(key+" warms up"))
	sprung := proxy.Sprung()
	release := proxy.HoldReply(isBatch)
	t.Cleanup(release)
	var held sync.WaitGroup
	held.Go(func() {
		if _, err := store.Reserve(context.Background(), reservation(key)); err != nil {
			t.Errorf("the reservation whose answer was held: %v", err)
		}
	})
	awaitSprung(t, proxy, sprung)
	letGo = sync.OnceFunc(func() {
		release()
		held.Wait()
	})
	t.Cleanup(letGo)
	return letGo
}

// gather lets n calls wait while the one lane is busy, lets them go, and returns how many round trips they took.
func gather(t testing.TB, store *postgres.Store, proxy *servers.Proxy, n int, call func(ctx context.Context, i int)) (trips int) {
	t.Helper()
	letGo := holdLane(t, store, proxy, "holds the lane")
	before := proxy.RoundTrips()
	ended := crowd(t.Context(), n, call)
	if got := proxy.RoundTrips() - before; got != 0 {
		t.Errorf("%d round trips while the only lane was busy", got)
	}
	letGo()
	ended()
	return proxy.RoundTrips() - before
}

// TestGathering: what concurrent callers ask travels together, whatever it is.
func TestGathering(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	const n = 60
	var claims [n]store.Claim
	for i, key := range keys("owned", n) {
		claims[i] = own(t, s, reservation(key))
	}
	fresh := keys("fresh", n)
	trips := gather(t, s, proxy, n, func(ctx context.Context, i int) {
		switch i % 3 {
		case 0:
			if v, err := s.Reserve(ctx, reservation(fresh[i])); err != nil || v.Decision != store.DecisionExecute {
				t.Errorf("reserve got (%s, %v)", v.Decision, err)
			}
		case 1:
			if err := s.Extend(ctx, claims[i], time.Hour); err != nil {
				t.Errorf("extend got %v", err)
			}
		default:
			if _, err := s.Complete(ctx, claims[i], answer(claims[i].Key)); err != nil {
				t.Errorf("complete got %v", err)
			}
		}
	})
	if trips > 3 {
		t.Errorf("%d calls that had gathered took %d round trips", n, trips)
	}
	for i := range n {
		switch i % 3 {
		case 0:
			wantState(t, s, fresh[i], store.StateInProgress, "S1")
		case 1:
			if rec, err := s.Get(t.Context(), claims[i].ID); err != nil || time.Until(rec.LeaseUntil) < 30*time.Minute {
				t.Errorf("S5: the lease of %q is until %s (%v), want about an hour", claims[i].Key, rec.LeaseUntil, err)
			}
		default:
			wantReplay(t, s, claims[i].Key, claims[i].Key, "E2")
		}
	}
}

// TestHeartbeatsTogether: many leases cost few statements.
func TestHeartbeatsTogether(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	const n = 200
	var claims [n]store.Claim
	ended := crowd(t.Context(), n, func(ctx context.Context, i int) {
		claims[i] = ownIn(ctx, t, s, reservation(keys("owned", n)[i]))
	})
	ended()
	trips := gather(t, s, proxy, n, func(ctx context.Context, i int) {
		if err := s.Extend(ctx, claims[i], time.Minute); err != nil {
			t.Errorf("S5: a heartbeat got %v", err)
		}
	})
	if trips > 3 {
		t.Errorf("the heartbeats of %d leases took %d round trips", n, trips)
	}
}

// TestSameKeyInOneBatch: those who ask for one key at the same moment have one winner.
func TestSameKeyInOneBatch(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	const n = 20
	var won, lost atomic.Int64
	trips := gather(t, s, proxy, n, func(ctx context.Context, _ int) {
		v, err := s.Reserve(ctx, reservation("contended"))
		switch {
		case err == nil && v.Decision == store.DecisionExecute:
			won.Add(1)
		case err == nil && v.Decision == store.DecisionInProgress:
			lost.Add(1)
		default:
			t.Errorf("got (%s, %v)", v.Decision, err)
		}
	})
	if won.Load() != 1 || lost.Load() != n-1 || trips > n+1 {
		t.Errorf("S1: %d won and %d were told that it is in progress, in %d round trips; want one winner of %d", won.Load(), lost.Load(), trips, n)
	}
}

// TestSameNonceInOneBatch: the same call, repeated while the first is still under way, gets the same grant.
func TestSameNonceInOneBatch(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	r := reservation("repeated")
	var attempts sync.Map
	var created atomic.Int64
	gather(t, s, proxy, 5, func(ctx context.Context, _ int) {
		v, err := s.Reserve(ctx, r)
		if err != nil || v.Decision != store.DecisionExecute {
			t.Errorf("S9: got (%s, %v), want the grant", v.Decision, err)
		}
		if v.Origin == store.OriginCreated {
			created.Add(1)
		}
		attempts.Store(v.Record.Attempt, true)
	})
	different := 0
	attempts.Range(func(any, any) bool { different++; return true })
	if different != 1 || created.Load() != 1 {
		t.Errorf("S9: %d attempts were granted to one nonce, %d of them new", different, created.Load())
	}
}

// TestLeavingInTheQueue: who leaves before its call is on the wire has asked for nothing.
func TestLeavingInTheQueue(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	letGo := holdLane(t, s, proxy, "holds the lane")
	ctx, cancel := context.WithCancel(t.Context())
	leave := crowd(ctx, 10, func(ctx context.Context, i int) {
		_, err := s.Reserve(ctx, reservation(keys("leaves", 10)[i]))
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	})
	stay := crowd(t.Context(), 10, func(ctx context.Context, i int) { ownIn(ctx, t, s, reservation(keys("stays", 10)[i])) })
	cancel()
	leave() // they do not wait for the lane, which is still held
	letGo()
	stay()
	for _, key := range keys("leaves", 10) {
		wantState(t, s, key, store.StateNone, "S9: it left before it was asked")
	}
}

// TestLeavingOnTheWire: who leaves while its call is on the wire takes nobody along, and gets its grant when it asks again.
func TestLeavingOnTheWire(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.WithLanes(1))
	letGo := holdLane(t, s, proxy, "holds the lane")
	ctx, cancel := context.WithCancel(t.Context())
	left := reservation("left")
	leave := crowd(ctx, 1, func(ctx context.Context, _ int) {
		if _, err := s.Reserve(ctx, left); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	})
	stay := crowd(t.Context(), 10, func(ctx context.Context, i int) { ownIn(ctx, t, s, reservation(keys("stays", 10)[i])) })
	sprung := proxy.Sprung()
	release := proxy.HoldReply(isBatch)
	t.Cleanup(release)
	letGo()
	awaitSprung(t, proxy, sprung)
	cancel()
	leave()
	release()
	stay()
	if v, err := s.Reserve(t.Context(), left); err != nil || v.Decision != store.DecisionExecute || v.Origin != store.OriginRepeated {
		t.Errorf("S9: the same call again got (%s, %s, %v), want the same grant", v.Decision, v.Origin, err)
	}
}
