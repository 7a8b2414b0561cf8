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
		return openPostgres(t, proxy.URL()), proxy
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

// TestAStoreThatIsAwayIsNotStormed: however many requests are refused, connections are tried for one at a time, with
// pauses between them. Before, 16 callers made up to 5,000 attempts in a second.
func TestAStoreThatIsAwayIsNotStormed(t *testing.T) {
	t.Parallel()
	const lasts = 2 * time.Second
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
				h := guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
					option, onceward.OperationName("pay"))
				post := func(key string) int {
					r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
					r.Header.Set("Idempotency-Key", key)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					return w.Code
				}
				if status := post("before"); status != http.StatusCreated {
					t.Fatalf("a store that is there: %d", status)
				}
				proxy.Refuse(true)
				proxy.DropAll()
				began, before := time.Now(), proxy.Connections()
				var crowd sync.WaitGroup
				for caller := range 16 {
					crowd.Go(func() {
						for n := 0; time.Since(began) < lasts; n++ {
							if status := post(fmt.Sprintf("%d-%d", caller, n)); status != http.StatusServiceUnavailable {
								t.Errorf("L2: a store that is away: %d, want 503", status)
							}
						}
					})
				}
				crowd.Wait()
				attempts := proxy.Connections() - before
				// Four in the longest pause, and those from before the pauses have grown.
				if most := 50 + 4*int(time.Since(began)/(125*time.Millisecond)); attempts > most {
					t.Errorf("%d connections were tried for in %s, want %d at most", attempts, time.Since(began), most)
				}
				proxy.Refuse(false)
				await.That(t, "the store is back", func() bool { return post("after") == http.StatusCreated })
			})
		}
	}
}
