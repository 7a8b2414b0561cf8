package stores_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/sqlite"
)

// sprayed returns how many keys are sprayed.
func sprayed() int { return nightly.Either(100_000, 1000) }

// portion is how many keys are sprayed before the test is seen to get on.
const portion = 2_000

func byToken(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil }

// limitedService is a guarded route over a store.
type limitedService struct {
	http.Handler
	runs atomic.Int64
}

func newLimitedService(t testing.TB, s store.Store, limiter onceward.Limiter, mode onceward.Option) *limitedService {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Scope:  byToken,
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, SettleTimeout: await.Limit,
		Logger: quiet, Limiter: limiter,
	})
	must(t, err)
	service := new(limitedService)
	service.Handler = guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		service.runs.Add(1)
		w.WriteHeader(http.StatusCreated)
	}, mode, onceward.OperationName("pay"))
	return service
}

func (s *limitedService) post(scope, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Authorization", scope)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// limitedRedis opens a store on Redis and its counters. A connection is given up if the machine stands still, and then
// the same call is repeated for as long as a test waits: it is answered as the first one was.
func limitedRedis(t *testing.T, url, prefix string) (store.Store, limit.Counters) {
	t.Helper()
	s, err := redis.Open(t.Context(), url, redis.WithPrefix(prefix), redis.WithLogger(quiet))
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return wrap.New(s, func(ctx context.Context, _ wrap.Call, next func(ctx context.Context) error) error {
		return repeat(ctx, t, next)
	}), repeatingCounters{s.Counters(), t}
}

// repeat repeats a call that a store cannot do, until the test is over.
func repeat(ctx context.Context, t *testing.T, call func(ctx context.Context) error) error {
	for end := time.Now().Add(await.Limit); ; time.Sleep(10 * time.Millisecond) {
		err := call(ctx)
		if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil || t.Context().Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// repeatingCounters repeat the takes that cannot be done.
type repeatingCounters struct {
	limit.Counters
	t *testing.T
}

// Take implements [limit.Counters].
func (c repeatingCounters) Take(ctx context.Context, ask limit.Take) (g limit.Grant, err error) {
	err = repeat(ctx, c.t, func(ctx context.Context) error {
		g, err = c.Counters.Take(ctx, ask)
		return err
	})
	return g, err
}

// bystander sends requests at an even pace, new ones and replays by turns, each of which has to be answered as usual.
type bystander struct {
	service *limitedService
	scope   string
	pace    time.Duration
}

// visit sends requests until it is told to end, and at least some.
func (b *bystander) visit(t *testing.T, what string, end <-chan struct{}) {
	t.Helper()
	const least = 100
	served, slowest, started := 0, time.Duration(0), time.Now()
	for i := 0; ; i++ {
		select {
		case <-end:
			if i >= least {
				t.Logf("%s: %d of %d served, %.1f a second; the slowest took %s", what, served, i,
					float64(served)/time.Since(started).Seconds(), slowest.Round(10*time.Microsecond))
				return
			}
		default:
		}
		time.Sleep(time.Until(started.Add(time.Duration(i) * b.pace)))
		key, want := fmt.Sprint(what, i), ""
		if i%2 == 1 {
			key, want = fmt.Sprint(what, i-1), "true" // a replay of the one before
		}
		sent := time.Now()
		w := b.service.post(b.scope, key)
		slowest = max(slowest, time.Since(sent))
		if w.Code == http.StatusCreated && w.Header().Get("Idempotent-Replayed") == want {
			served++
		} else {
			t.Errorf("L1: a request of a bystander %s: %d, replayed %q", what, w.Code, w.Header().Get("Idempotent-Replayed"))
		}
	}
}

// TestSprayedKeys: one scope sprays keys. Of these exactly the limit is executed and stored, the others are refused;
// the scope's own replays, and all requests of another scope, are served. At which rate the benchmarks spray-shared and
// spray-local of lab/bench say.
func TestSprayedKeys(t *testing.T) {
	t.Parallel()
	const most = 100
	limits := limit.Limits{NewKeys: limit.Rate{Limit: most, Window: 1000 * time.Hour}, ActiveKeys: 1000}
	plan := func(scope string) limit.Limits {
		if scope == "bob" {
			return limit.Limits{NewKeys: limit.Rate{Limit: 100_000}}
		}
		return limits
	}
	for name, open := range map[string]func(t *testing.T) (nodes []*limitedService, inside store.Store){
		"two nodes on Redis, reserved": func(t *testing.T) (nodes []*limitedService, inside store.Store) {
			server := servers.Redis(t)
			prefix := server.Prefix(t)
			for range 2 {
				s, counters := limitedRedis(t, server.URL(), prefix)
				l, err := limit.New(limit.Config{
					For: plan, Counters: counters, Nodes: 2, Logger: quiet, CounterTimeout: await.Limit,
				})
				must(t, err)
				nodes = append(nodes, newLimitedService(t, s, l, onceward.Reserved(onceward.FailureUnknown)))
				inside = s
			}
			return nodes, inside
		},
		"one node on SQLite, transactional": func(t *testing.T) ([]*limitedService, store.Store) {
			s, err := sqlite.Open(t.Context(), t.TempDir()+"/onceward.db")
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			l, err := limit.New(limit.Config{For: plan})
			must(t, err)
			return []*limitedService{newLimitedService(t, s, l, onceward.Transactional())}, s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, inside := open(t)
			// What mallory did before is answered during the attack.
			for _, key := range []string{"mine1", "mine2"} {
				if w := nodes[0].post("mallory", key); w.Code != http.StatusCreated {
					t.Fatalf("the first request: %d", w.Code)
				}
			}
			ended := make(chan struct{})
			close(ended)
			bob := &bystander{nodes[len(nodes)-1], "bob", 5 * time.Millisecond}
			bob.visit(t, "before", ended)

			during := make(chan struct{})
			var others sync.WaitGroup
			var executed, refused, next atomic.Int64
			spray := func(t *testing.T) {
				var attackers sync.WaitGroup
				last := min(int(next.Load())+portion, sprayed())
				for i := range 8 {
					attackers.Go(func() {
						for n := next.Add(1); int(n) <= last; n = next.Add(1) {
							switch w := nodes[i%len(nodes)].post("mallory", fmt.Sprint("sprayed", n)); w.Code {
							case http.StatusCreated:
								executed.Add(1)
							case http.StatusTooManyRequests:
								refused.Add(1)
							default:
								t.Errorf("L1: a sprayed key: %d %s", w.Code, w.Body)
							}
							time.Sleep(time.Millisecond) // all of them share this one machine
						}
					})
				}
				attackers.Wait()
				next.Store(int64(last))
			}
			replays := 0
			others.Go(func() { bob.visit(t, "during", during) })
			others.Go(func() {
				for ; ; replays++ {
					select {
					case <-during:
						return
					default:
					}
					w := nodes[0].post("mallory", fmt.Sprint("mine", 1+replays%2))
					if w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
						t.Errorf("A6: a replay of a scope over its limit: %d", w.Code)
					}
					time.Sleep(bob.pace)
				}
			})
			for int(next.Load()) < sprayed() {
				t.Run(fmt.Sprint("from ", next.Load()), spray)
			}
			close(during)
			others.Wait()
			t.Logf("%d keys sprayed: %d executed, %d refused; %d replays of the same scope", executed.Load()+refused.Load(),
				executed.Load(), refused.Load(), replays)
			if n := int(executed.Load()) + 2; n > most || len(nodes) == 1 && n != most {
				t.Errorf("L1: %d keys of the scope were executed, want exactly %d", n, most)
			}
			if n := executed.Load() + refused.Load(); n != int64(sprayed()) {
				t.Errorf("L1: %d of %d sprayed keys were answered", n, sprayed())
			}
			// What one node held and did not use is there for all after a moment: exactly the limit can be used.
			await.That(t, fmt.Sprintf("L1: exactly %d keys of the scope are executed", most), func() bool {
				if int(executed.Load())+2 == most {
					return true
				}
				if nodes[0].post("mallory", fmt.Sprint("sprayed", next.Add(1))).Code == http.StatusCreated {
					executed.Add(1)
				}
				return false
			})
			if w := nodes[0].post("mallory", "one-more"); w.Code != http.StatusTooManyRequests {
				t.Errorf("L1: a key past the limit: %d", w.Code)
			}
			stored := 0
			for n := range next.Load() + 1 {
				if _, err := inside.Get(t.Context(), store.ID{Scope: "mallory", Key: fmt.Sprint("sprayed", n)}); err == nil {
					stored++
				} else if !errors.Is(err, store.ErrNotFound) {
					t.Fatal(err)
				}
			}
			if int64(stored) != executed.Load() {
				t.Errorf("L1: %d sprayed keys are stored, want the %d that were executed", stored, executed.Load())
			}
		})
	}
}
