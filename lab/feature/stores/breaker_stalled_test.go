package stores_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/breaker"
)

// TestStalledWrites: PostgreSQL waits for a synchronous standby that is gone, and answers reads. The breaker opens,
// also while a transactional handler is at work, and what that has done is settled when the server is well again.
func TestStalledWrites(t *testing.T) {
	t.Parallel()
	server := servers.NewPostgres(t)
	const crowded = 12 // more than all calls before
	x := newShop(t, openPostgres(t, server.SchemaURL(t)+"&pool_max_conns=30"),
		breaker.Config{ConsecutiveFailures: crowded, SlowCall: 300 * time.Millisecond})
	created := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	if w := x.post(created, "first", `{}`, onceward.Reserved(onceward.FailureUnknown)); w.Code != http.StatusCreated {
		t.Fatalf("before: %d %s", w.Code, w.Body)
	}
	started, goOn, slow := make(chan struct{}), make(chan struct{}), make(chan *httptest.ResponseRecorder, 1)
	go func() {
		slow <- x.post(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-goOn
			created(w, r)
		}, "slow", `{}`, onceward.Transactional())
	}()
	<-started
	must(t, server.Exec(t.Context(), `ALTER SYSTEM SET synchronous_standby_names = 'gone'`))
	must(t, server.Exec(t.Context(), `SELECT pg_reload_conf()`))
	await.That(t, "the setting", func() bool {
		names, err := server.Query(t.Context(), `SHOW synchronous_standby_names`)
		return err == nil && names == "gone"
	})
	var crowd sync.WaitGroup
	opened := make(chan struct{})
	for i := range crowded {
		crowd.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-opened:
					return
				default:
					x.post(created, fmt.Sprintf("hangs%d-%d", i, n), `{}`, onceward.Reserved(onceward.FailureUnknown))
				}
			}
		})
	}
	await.That(t, "an open breaker", func() bool { return x.breaker.State() == breaker.StateOpen })
	close(opened)
	must(t, server.Exec(t.Context(), `ALTER SYSTEM RESET synchronous_standby_names`))
	must(t, server.Exec(t.Context(), `SELECT pg_reload_conf()`))
	await.That(t, "the setting is as before", func() bool {
		names, err := server.Query(t.Context(), `SHOW synchronous_standby_names`)
		return err == nil && names == ""
	})
	close(goOn)
	if w := <-slow; w.Code != http.StatusCreated {
		t.Errorf("L2: what was in flight ended with %d %s", w.Code, w.Body)
	}
	crowd.Wait()
}
