package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
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
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
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
func gather(
	t testing.TB, store *postgres.Store, proxy *servers.Proxy, n int, call func(ctx context.Context, i int),
) (trips int) {
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
	s, proxy := openProxied(t, postgres.OneLane())
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
	s, proxy := openProxied(t, postgres.OneLane())
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
	s, proxy := openProxied(t, postgres.OneLane())
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
		t.Errorf("S1: %d won and %d were told that it is in progress, in %d round trips; want one winner of %d",
			won.Load(), lost.Load(), trips, n)
	}
}

// TestSameNonceInOneBatch: the same call, repeated while the first is still under way, gets the same grant.
func TestSameNonceInOneBatch(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.OneLane())
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
	s, proxy := openProxied(t, postgres.OneLane())
	letGo := holdLane(t, s, proxy, "holds the lane")
	ctx, cancel := context.WithCancel(t.Context())
	leave := crowd(ctx, 10, func(ctx context.Context, i int) {
		_, err := s.Reserve(ctx, reservation(keys("leaves", 10)[i]))
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	})
	stay := crowd(t.Context(), 10,
		func(ctx context.Context, i int) { ownIn(ctx, t, s, reservation(keys("stays", 10)[i])) })
	cancel()
	leave() // they do not wait for the lane, which is still held
	letGo()
	stay()
	for _, key := range keys("leaves", 10) {
		wantState(t, s, key, store.StateNone, "S9: it left before it was asked")
	}
}

// TestLeavingOnTheWire: who leaves while its call is on the wire takes no other along, and gets its grant when it asks
// again.
func TestLeavingOnTheWire(t *testing.T) {
	t.Parallel()
	s, proxy := openProxied(t, postgres.OneLane())
	letGo := holdLane(t, s, proxy, "holds the lane")
	ctx, cancel := context.WithCancel(t.Context())
	left := reservation("left")
	leave := crowd(ctx, 1, func(ctx context.Context, _ int) {
		if _, err := s.Reserve(ctx, left); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	})
	stay := crowd(t.Context(), 10,
		func(ctx context.Context, i int) { ownIn(ctx, t, s, reservation(keys("stays", 10)[i])) })
	sprung := proxy.Sprung()
	release := proxy.HoldReply(isBatch)
	t.Cleanup(release)
	letGo()
	awaitSprung(t, proxy, sprung)
	cancel()
	leave()
	release()
	stay()
	if v, err := s.Reserve(t.Context(), left); err != nil || v.Decision != store.DecisionExecute ||
		v.Origin != store.OriginRepeated {
		t.Errorf("S9: the same call again got (%s, %s, %v), want the same grant", v.Decision, v.Origin, err)
	}
}

// TestRefusedNeighbour: one item that the server refuses does not fail those that travel with it.
func TestRefusedNeighbour(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s := openUnasked(t, proxy.URL(), postgres.OneLane())
	exec(t, openAdmin(t, url), `ALTER TABLE onceward_record ADD CHECK (position('refused'::bytea IN body) = 0)`)
	const n, bad = 20, 7
	var claims [n]store.Claim
	for i, key := range keys("owned", n) {
		claims[i] = own(t, s, reservation(key))
	}
	gather(t, s, proxy, n, func(ctx context.Context, i int) {
		body := "stored"
		if i == bad {
			body = "refused"
		}
		_, err := s.Complete(ctx, claims[i], answer(body))
		if i != bad && err != nil {
			t.Errorf("a neighbour of the one that was refused got %v", err)
		}
		if i == bad && (!errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "check constraint")) {
			t.Errorf("the one that was refused got %v, want ErrUnavailable that says why", err)
		}
	})
	for i, claim := range claims {
		if i != bad {
			wantReplay(t, s, claim.Key, "stored", "E2")
		}
	}
	wantState(t, s, claims[bad].Key, store.StateInProgress, "E7: it can be tried again")
	complete(t, s, claims[bad], "another answer")
}

// TestLargeAnswers: a hundred answers of a mebibyte at once are many batches, not a failure.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	s := openStore(t, url)
	const n, size = 100, 1 << 20
	var claims [n]store.Claim
	for i, key := range keys("large", n) {
		claims[i] = own(t, s, reservation(key))
	}
	body := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 1, 2, 3}, size/4) }
	crowd(t.Context(), n, func(ctx context.Context, i int) {
		done := &store.Completion{Response: store.Response{Status: 200, Body: body(i)}}
		if _, err := s.Complete(ctx, claims[i], done); err != nil {
			t.Errorf("an answer of a mebibyte got %v", err)
		}
	})()
	if whole := number(t, openAdmin(t, url),
		`SELECT count(*) FROM onceward_record WHERE octet_length(body) >= $1`, size); whole != n {
		t.Errorf("%d of %d answers were stored", whole, n)
	}
	for i := 0; i < n; i += 20 {
		rec, err := s.Get(t.Context(), claims[i].ID)
		if err != nil || !bytes.Equal(rec.Response.Body, body(i)) {
			t.Errorf("I3: answer %d came back as %d bytes that are not the same (%v)", i, len(rec.Response.Body), err)
		}
	}
}

// calls are all that can be asked of a store.
func calls(s *postgres.Store) map[string]func(ctx context.Context) error {
	claim := store.Claim{ID: idOf("key"), Attempt: 1}
	return map[string]func(ctx context.Context) error{
		"reserve":    func(ctx context.Context) error { _, err := s.Reserve(ctx, reservation("key")); return err },
		"extend":     func(ctx context.Context) error { return s.Extend(ctx, claim, time.Minute) },
		"checkpoint": func(ctx context.Context) error { return s.Checkpoint(ctx, claim, store.Checkpoint{Point: "p"}) },
		"complete":   func(ctx context.Context) error { _, err := s.Complete(ctx, claim, answer("x")); return err },
		"release":    func(ctx context.Context) error { return s.Release(ctx, claim, "") },
		"abandon":    func(ctx context.Context) error { return s.Abandon(ctx, claim, "") },
		"get":        func(ctx context.Context) error { _, err := s.Get(ctx, claim.ID); return err },
		"transact": func(ctx context.Context) error {
			_, err := s.Transact(ctx, reservation("key"), committing("x", nothing))
			return err
		},
		"wait":                  func(ctx context.Context) error { return s.Wait(ctx, claim.ID, 1) },
		"sweep":                 func(ctx context.Context) error { _, err := s.Sweep(ctx, 10); return err },
		"reap":                  func(ctx context.Context) error { _, err := s.Reap(ctx, 10, false); return err },
		"resolve completed":     func(ctx context.Context) error { return s.ResolveCompleted(ctx, claim, answer("x")) },
		"resolve not executed":  func(ctx context.Context) error { return s.ResolveNotExecuted(ctx, claim, "") },
		"postpone":              func(ctx context.Context) error { return s.Postpone(ctx, claim, store.Postponement{MaxAttempts: 3}) },
		"begin reconcile":       func(ctx context.Context) error { return s.BeginReconcile(ctx, claim, 0, time.Minute) },
		"resolve step":          func(ctx context.Context) error { return s.ResolveStep(ctx, claim, store.Checkpoint{Point: "p"}) },
		"requeue":               func(ctx context.Context) error { return s.Requeue(ctx, claim, "") },
		"bust":                  func(ctx context.Context) error { return s.Bust(ctx, claim.ID, false) },
		"list":                  func(ctx context.Context) error { _, err := s.List(ctx, store.Filter{}); return err },
		"stats":                 func(ctx context.Context) error { _, err := s.Stats(ctx); return err },
		"add a late completion": func(ctx context.Context) error { return s.AddLateCompletion(ctx, store.LateCompletion{Claim: claim}) },
		"late completions":      func(ctx context.Context) error { _, err := s.LateCompletions(ctx, claim.ID); return err },
		"add an external event": func(ctx context.Context) error { _, err := s.AddExternalEvent(ctx, store.ExternalEvent{}); return err },
		"external events":       func(ctx context.Context) error { _, err := s.ExternalEvents(ctx, aboutCharge("ch_1")); return err },
		"purge external events": func(ctx context.Context) error { _, err := s.PurgeExternalEvents(ctx, 0, 10); return err },
		"add an act":            func(ctx context.Context) error { return s.AddAudit(ctx, store.AuditEntry{ID: claim.ID}) },
		"acts":                  func(ctx context.Context) error { _, err := s.Audit(ctx, claim.ID); return err },
		"purge acts":            func(ctx context.Context) error { _, err := s.PurgeAudit(ctx, 0, 10); return err },
	}
}

// TestClosedStore: a store that is closed says so, also where the pool of the handlers is still open.
func TestClosedStore(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t)
	opened := openStore(t, server.SchemaURL(t))
	pool, err := pgxpool.New(t.Context(), server.SchemaURL(t))
	must(t, err)
	t.Cleanup(pool.Close)
	shared, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	for name, s := range map[string]*postgres.Store{"Open": opened, "New": shared} {
		own(t, s, reservation("key")) // so that nothing has to be looked up that fails for another reason
		must(t, s.Close())
		for call, f := range calls(s) {
			if err := f(t.Context()); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s on a closed store of %s got %v, want ErrUnavailable", call, name, err)
			}
		}
		must(t, s.Close())
	}
}

// TestManyLockedRecords: a batch whose records are locked gives up on all of them in little more time than on one, because
// it has waited for them already, and completes the others.
func TestManyLockedRecords(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	proxy := servers.NewProxy(t, url)
	s := openUnasked(t, proxy.URL(), postgres.OneLane(), postgres.LockTimeout("100ms"))
	claims := make([]store.Claim, 16)
	for i := range claims {
		claims[i] = own(t, s, reservation(fmt.Sprint("key ", i)))
	}
	free := s.RecordID(claims[0].ID)
	locks := holding(t, openAdmin(t, url), fmt.Sprintf(`SELECT FROM onceward_record WHERE id <> '%s' FOR UPDATE`, free))
	var hurried atomic.Int64
	proxy.CutRequest(func(sql string) bool {
		if strings.Contains(sql, "'20ms'") {
			hurried.Add(1)
		}
		return false
	})
	gather(t, s, proxy, len(claims), func(ctx context.Context, i int) {
		if _, err := s.Complete(ctx, claims[i], answer("paid")); (err == nil) != (i == 0) {
			t.Errorf("the completion of record %d, of which all but the first are locked, got %v", i, err)
		}
	})
	if n := hurried.Load(); n != int64(len(claims)) {
		t.Errorf("%d of %d records were tried with little patience after their batch had waited", n, len(claims))
	}
	must(t, locks.Rollback(t.Context()))
}
