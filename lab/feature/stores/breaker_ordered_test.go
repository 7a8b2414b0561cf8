package stores_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/breaker"
)

// TestCommitsBehindAHandler: answers whose messages follow those of a handler that is still at work wait for it, and
// say nothing about PostgreSQL.
func TestCommitsBehindAHandler(t *testing.T) {
	t.Parallel()
	nightly.Only(t, timedBreaker)
	x := newShop(t, openPostgres(t, servers.Postgres(t).SchemaURL(t)+"&pool_max_conns=20"),
		breaker.Config{SlowCall: slowCall})
	box, err := outbox.New(x.breaker, outbox.Config{Source: "shop"})
	must(t, err)
	paid := outbox.Message{Topic: "payments", AggregateType: "merchant", AggregateID: "m1", Type: "paid", Payload: []byte(`{}`)}
	started, quick := make(chan struct{}), make(chan struct{}, 6)
	var crowd sync.WaitGroup
	crowd.Go(func() {
		x.post(func(w http.ResponseWriter, r *http.Request) {
			_, err := box.Add(r.Context(), onceward.Tx(r.Context()), paid)
			must(t, err)
			close(started)
			for range cap(quick) {
				<-quick
			}
			time.Sleep(slowCall + time.Second) // so that each call that waits is judged
			w.WriteHeader(http.StatusCreated)
		}, "slow", `{}`, onceward.Transactional())
	})
	<-started
	for i := range cap(quick) {
		crowd.Go(func() {
			w := x.post(func(w http.ResponseWriter, r *http.Request) {
				_, err := box.AddToAnswer(r.Context(), paid)
				must(t, err)
				quick <- struct{}{}
				w.WriteHeader(http.StatusCreated)
			}, fmt.Sprint("quick", i), `{}`, onceward.Transactional())
			if w.Code != http.StatusCreated {
				t.Errorf("a request whose message waits for its turn: %d %s", w.Code, w.Body)
			}
			if state := x.breaker.State(); state != breaker.StateClosed {
				t.Errorf("L2: the breaker is %s, and PostgreSQL is well", state)
			}
		})
	}
	crowd.Wait()
}
