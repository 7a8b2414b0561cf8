package callers_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/oncewardtest"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/redis"
)

var paymentRequest = oncewardtest.Post("/payments", `{"amount": 1200}`)

// wantKinds checks a service, and compares what is found.
func wantKinds(
	t *testing.T, world func(t oncewardtest.TestingT) oncewardtest.Config, want ...oncewardtest.Kind,
) {
	t.Helper()
	var kinds []oncewardtest.Kind
	for _, f := range oncewardtest.Find(t, world, paymentRequest) {
		kinds = append(kinds, f.Kind)
		t.Logf("%s", f)
	}
	slices.Sort(kinds)
	if kinds = slices.Compact(kinds); !slices.Equal(kinds, want) {
		t.Errorf("found %q, want %q", kinds, want)
	}
}

// route is a service with one route.
func route(handler http.HandlerFunc, mode onceward.Option) func(guard *onceward.Guard) http.Handler {
	return func(guard *onceward.Guard) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /payments", guard.Handler(handler, mode))
		return mux
	}
}

// charge calls a provider, on a route that says what a failure means.
func charge(provider *oncewardtest.Provider, failure onceward.Failure) func(guard *onceward.Guard) http.Handler {
	return route(func(w http.ResponseWriter, r *http.Request) {
		key := onceward.FromContext(r.Context()).DownstreamKey("charge")
		if _, err := provider.Call(r.Context(), "/charges", key, `{}`); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(failure))
}

func TestOnMemory(t *testing.T) {
	t.Parallel()
	on := func(failure onceward.Failure) func(t oncewardtest.TestingT) oncewardtest.Config {
		return func(t oncewardtest.TestingT) oncewardtest.Config {
			clock, provider := oncewardtest.NewClock(), oncewardtest.NewProvider(t, oncewardtest.ProviderConfig{})
			return oncewardtest.Config{
				Store: memory.New(memory.WithClock(clock.Now)), Clock: clock, Service: charge(provider, failure),
				Providers: []*oncewardtest.Provider{provider},
			}
		}
	}
	wantKinds(t, on(onceward.FailureUnknown))
	wantKinds(t, on(onceward.FailureRetry), oncewardtest.KindTwice)
}

// repeating repeats the calls that a store cannot do, for as long as a test waits: a connection to Redis is given up if
// the machine stands still.
func repeating(over context.Context, s store.Store) store.Store {
	return wrap.New(s, func(ctx context.Context, _ wrap.Call, next func(ctx context.Context) error) error {
		for end := time.Now().Add(await.Limit); ; time.Sleep(10 * time.Millisecond) {
			err := next(ctx)
			if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil || over.Err() != nil || time.Now().After(end) {
				return err
			}
		}
	})
}

func TestOnRedis(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	on := func(failure onceward.Failure) func(t oncewardtest.TestingT) oncewardtest.Config {
		return func(u oncewardtest.TestingT) oncewardtest.Config {
			s, err := redis.Open(u.Context(), server.URL(), redis.WithPrefix(server.Prefix(t)))
			if err != nil {
				u.Fatalf("%v", err)
			}
			u.Cleanup(func() { _ = s.Close() })
			provider := oncewardtest.NewProvider(u, oncewardtest.ProviderConfig{})
			return oncewardtest.Config{
				Store: repeating(u.Context(), s), Clock: redis.NewTestClock(u, s), Service: charge(provider, failure),
				Providers: []*oncewardtest.Provider{provider}, Guard: onceward.Config{StoreTimeout: await.Limit},
			}
		}
	}
	wantKinds(t, on(onceward.FailureUnknown))
	wantKinds(t, on(onceward.FailureRetry), oncewardtest.KindTwice)
}

// TestOnPostgres: a handler that takes the transaction of pgx, and one that writes with the pool instead.
func TestOnPostgres(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servers.Postgres(t).SchemaURL(t))
	must(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE payment (amount bigint)`)
	must(t, err)
	s, err := postgres.New(t.Context(), pool)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	clock, db := postgres.NewTestClock(t, s), stdlib.OpenDBFromPool(pool)
	on := func(insert func(ctx context.Context, pool *pgxpool.Pool) error) func(oncewardtest.TestingT) oncewardtest.Config {
		return func(oncewardtest.TestingT) oncewardtest.Config {
			return oncewardtest.Config{
				Store: s, Clock: clock, Effects: oncewardtest.Rows(db, "payment"),
				Guard: onceward.Config{StoreTimeout: await.Limit},
				Service: route(func(w http.ResponseWriter, r *http.Request) {
					if err := insert(r.Context(), pool); err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					w.WriteHeader(http.StatusCreated)
				}, onceward.Transactional()),
			}
		}
	}
	wantKinds(t, on(insertByTx))
	wantKinds(t, on(insertByPool), oncewardtest.KindPastTx)
}

const insertPayment = `INSERT INTO payment (amount) VALUES (1200)`

func insertByTx(ctx context.Context, _ *pgxpool.Pool) error {
	_, err := postgres.Tx(ctx).Exec(ctx, insertPayment)
	return err
}

func insertByPool(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, insertPayment)
	return err
}
