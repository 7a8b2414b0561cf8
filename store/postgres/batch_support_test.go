package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// This file holds what the tests of single properties share.

func idOf(key string) store.ID { return store.ID{Scope: "alice", Key: key} }

// reservation is that of a request of its own: another one for the same key has another nonce.
func reservation(key string) *store.Reservation {
	r := &store.Reservation{
		ID: idOf(key), Operation: "POST /payments", Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{7}}},
		Lease: time.Minute, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

func answer(body string) *store.Completion {
	return &store.Completion{Response: store.Response{Status: 201, Body: []byte(body)}}
}

// openStore opens a store that is closed with the test.
func openStore(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(t.Context(), url, append([]postgres.Option{quiet, patient}, options...)...)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return store
}

// openProxied opens a store whose every statement goes through a proxy. Its pools do not ask idle connections whether
// they still work, because that is a round trip of unknown length.
func openProxied(t testing.TB, options ...postgres.Option) (*postgres.Store, *servers.Proxy) {
	t.Helper()
	proxy := servers.NewProxy(t, servers.Postgres(t).SchemaURL(t))
	return openUnasked(t, proxy.URL(), options...), proxy
}

func openUnasked(t testing.TB, url string, options ...postgres.Option) *postgres.Store {
	t.Helper()
	return openConfigured(t, url, func(config *pgxpool.Config) {
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	}, options...)
}

// openConfigured opens a store on a pool that is configured in a way of its own.
func openConfigured(
	t testing.TB, url string, configure func(*pgxpool.Config), options ...postgres.Option,
) *postgres.Store {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	configure(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	store, err := postgres.New(t.Context(), pool, append([]postgres.Option{quiet, patient}, options...)...)
	must(t, err)
	t.Cleanup(func() {
		must(t, store.Close())
		pool.Close()
	})
	return store
}

// openAdmin opens a pool beside the store.
func openAdmin(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	admin, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(admin.Close)
	return admin
}

func number(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	must(t, pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// own reserves a key that is free.
func own(t testing.TB, store store.Store, r *store.Reservation) store.Claim {
	t.Helper()
	claim := ownIn(t.Context(), t, store, r)
	if claim.Attempt == 0 {
		t.FailNow()
	}
	return claim
}

// ownIn is own for one of a crowd.
func ownIn(ctx context.Context, t testing.TB, s store.Store, r *store.Reservation) store.Claim {
	t.Helper()
	v, err := s.Reserve(ctx, r)
	if err != nil || v.Decision != store.DecisionExecute {
		t.Errorf("reserve %q: got (%s, %v), want the right to execute", r.Key, v.Decision, err)
	}
	return store.Claim{ID: r.ID, Attempt: v.Record.Attempt}
}

// complete settles what a caller owns.
func complete(t testing.TB, store store.Store, c store.Claim, body string) {
	t.Helper()
	if _, err := store.Complete(t.Context(), c, answer(body)); err != nil {
		t.Fatalf("complete %q: %v", c.Key, err)
	}
}

// wantReplay asks for a key whose answer is known.
func wantReplay(t testing.TB, s store.Store, key, body, rule string) {
	t.Helper()
	v, err := s.Reserve(context.Background(), reservation(key))
	if err != nil || v.Decision != store.DecisionReplay || string(v.Record.Response.Body) != body {
		t.Errorf("%s: %q got (%s, %.40q, %v), want the stored answer %.40q",
			rule, key, v.Decision, v.Record.Response.Body, err, body)
	}
}

func wantState(t testing.TB, s store.Store, key string, want store.State, rule string) {
	t.Helper()
	rec, err := s.Get(context.Background(), idOf(key))
	if want == store.StateNone && err == store.ErrNotFound {
		return
	}
	if err != nil || rec.State != want {
		t.Errorf("%s: the record of %q is (%s, %v), want %s", rule, key, rec.State, err, want)
	}
}

// committing is work that does f and commits.
func committing(body string, f func(ctx context.Context) error) func(context.Context, store.Verdict) store.Settlement {
	return func(ctx context.Context, _ store.Verdict) store.Settlement {
		if err := f(ctx); err != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		return store.Settlement{Action: store.TxCommit, Completion: *answer(body)}
	}
}

// transacted runs a transaction that is to be executed.
func transacted(t testing.TB, s store.Transactor, key string, f func(ctx context.Context) error) {
	t.Helper()
	v, err := s.Transact(t.Context(), reservation(key), committing(key, f))
	if err != nil || v.Decision != store.DecisionExecute || v.Record.State != store.StateCompleted {
		t.Fatalf("transact %q: got (%s, %s, %v), want it executed and completed", key, v.Decision, v.Record.State, err)
	}
}

func nothing(context.Context) error { return nil }

// waitingContext tells when the one it was given to begins to wait for its end.
type waitingContext struct {
	context.Context
	once    sync.Once
	waiting func()
}

// Done is what those who wait look at.
func (c *waitingContext) Done() <-chan struct{} {
	c.once.Do(c.waiting)
	return c.Context.Done()
}

// crowd runs n calls at once, and returns when each of them waits for its answer. The end of all is awaited with the
// function returned.
func crowd(ctx context.Context, n int, call func(ctx context.Context, i int)) (ended func()) {
	var waiting, running sync.WaitGroup
	for i := range n {
		waiting.Add(1)
		running.Go(func() {
			once := sync.OnceFunc(waiting.Done)
			defer once()
			call(&waitingContext{Context: ctx, waiting: once}, i)
		})
	}
	waiting.Wait()
	return running.Wait
}

func keys(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, "-", i))
	}
	return all
}
