package stores_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
	"github.com/onceward/onceward/store/redis"
)

// proxied opens stores behind a proxy that counts the connections to their servers.
var proxied = map[string]func(t *testing.T) (store.Store, *servers.Proxy){
	"postgres": func(t *testing.T) (store.Store, *servers.Proxy) {
		proxy := servers.NewProxy(t, servers.Postgres(t).SchemaURL(t))
		return openPostgres(t, proxy.URL()+"&pool_max_conns=16"), proxy // one for the transaction of each owner
	},
	"mysql": func(t *testing.T) (store.Store, *servers.Proxy) {
		proxy := servers.NewMySQLProxy(t, servers.MariaDB(t).DatabaseURL(t))
		s, err := mysql.Open(t.Context(), proxy.URL(), mysql.WithLogger(quiet))
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s, proxy
	},
	"redis": func(t *testing.T) (store.Store, *servers.Proxy) {
		server := servers.Redis(t)
		proxy := servers.NewRedisProxy(t, server.URL())
		s, err := redis.Open(t.Context(), proxy.URL(), redis.WithPrefix(server.Prefix(t)))
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s, proxy.Proxy
	},
}

// awayFor is how long a store is away.
const awayFor = 2 * time.Second

// crowded is how many requests there are at a time.
const crowded = 16

// mostAttempts returns how many connections may be tried for while a store is away: four in the longest pause, and
// those from before the pauses have grown.
func mostAttempts(lasted time.Duration) int { return 50 + 4*int(lasted/(125*time.Millisecond)) }

// guarding makes a function that sends a request to a guarded handler and returns its status.
type guarding func(handler http.HandlerFunc) (post func(key string) int)

// eachAway runs a test for each mode of each store.
func eachAway(t *testing.T, test func(t *testing.T, guard guarding, proxy *servers.Proxy)) {
	for name, open := range proxied {
		for mode, option := range map[string]onceward.Option{
			"reserved": onceward.Reserved(onceward.FailureUnknown), "transactional": onceward.Transactional(),
		} {
			if name == "redis" && mode == "transactional" {
				continue
			}
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				s, proxy := open(t)
				guard, err := onceward.New(s, onceward.Config{
					Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"), Logger: quiet,
				})
				must(t, err)
				test(t, func(handler http.HandlerFunc) func(key string) int {
					h := guard.HandlerFunc(handler, option, onceward.OperationName("pay"))
					return func(key string) int {
						r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
						r.Header.Set("Idempotency-Key", key)
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						return w.Code
					}
				}, proxy)
			})
		}
	}
}

// TestAStoreThatIsAwayIsNotStormed: however many requests are refused, connections are tried for one at a time, with
// pauses between them. Before, 16 callers made up to 5,000 attempts in a second.
func TestAStoreThatIsAwayIsNotStormed(t *testing.T) {
	t.Parallel()
	eachAway(t, func(t *testing.T, guard guarding, proxy *servers.Proxy) {
		post := guard(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
		keys := 0
		answers := func() bool { // with a new key each time: after a slow answer the outcome of a key can be unknown
			keys++
			return post(fmt.Sprint("key-", keys)) == http.StatusCreated
		}
		await.That(t, "the store answers in time", answers)
		proxy.Refuse(true)
		proxy.DropAll()
		began, before := time.Now(), proxy.Connections()
		var crowd sync.WaitGroup
		for caller := range crowded {
			crowd.Go(func() {
				for n := 0; time.Since(began) < awayFor; n++ {
					if status := post(fmt.Sprintf("%d-%d", caller, n)); status != http.StatusServiceUnavailable {
						t.Errorf("L2: a store that is away: %d, want 503", status)
					}
				}
			})
		}
		crowd.Wait()
		attempts, lasted := proxy.Connections()-before, time.Since(began)
		if most := mostAttempts(lasted); attempts > most {
			t.Errorf("%d connections were tried for in %s, want %d at most", attempts, lasted, most)
		}
		proxy.Refuse(false)
		await.That(t, "the store is back", answers)
	})
}

// TestOwnersOfAStoreThatIsAwayDoNotStorm: owners whose store is away when they settle, and which wait for it to learn
// what became of their COMMIT, try for connections one at a time too. Before, 16 of them made 600 attempts in a second.
func TestOwnersOfAStoreThatIsAwayDoNotStorm(t *testing.T) {
	t.Parallel()
	eachAway(t, func(t *testing.T, guard guarding, proxy *servers.Proxy) {
		var inside, crowd sync.WaitGroup
		inside.Add(crowded)
		away := make(chan struct{})
		post := guard(func(w http.ResponseWriter, _ *http.Request) {
			inside.Done()
			<-away
			w.WriteHeader(http.StatusCreated)
		})
		for caller := range crowded {
			crowd.Go(func() { post(fmt.Sprint(caller)) })
		}
		inside.Wait()
		proxy.Refuse(true)
		proxy.DropAll()
		began, before := time.Now(), proxy.Connections()
		close(away)
		time.Sleep(awayFor)
		attempts, lasted := proxy.Connections()-before, time.Since(began)
		proxy.Refuse(false)
		crowd.Wait()
		if most := mostAttempts(lasted); attempts > most {
			t.Errorf("%d connections were tried for in %s, want %d at most", attempts, lasted, most)
		}
	})
}
