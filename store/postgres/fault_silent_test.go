package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestSilentServerDoesNotStopAWorker: the connection of a claim stays open and says nothing more, as when the server's
// machine has vanished. The worker takes another one, long before the system gives the connection up.
func TestSilentServerDoesNotStopAWorker(t *testing.T) {
	t.Parallel()
	for statement, part := range map[string]string{"claim": "outbox_claim", "promote": "outbox_promote"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			workPastSilence(t, statement, part)
		})
	}
}

// workPastSilence has a worker deliver although the reply to a statement never comes.
func workPastSilence(t *testing.T, statement, part string) {
	u := newOutboxTest(t, "")
	proxy := servers.NewProxy(t, u.url)
	store, err := postgres.Open(t.Context(), proxy.URL(), quiet)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	release := proxy.HoldReply(func(sql string) bool { return strings.Contains(sql, part) })
	t.Cleanup(release)
	delivered := make(chan string, 10)
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
		Lease: time.Second, Poll: 10 * time.Millisecond,
		Routes: map[string]outbox.Route{statement: {Handler: func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
			delivered <- d.Type
			return outbox.Result{}, nil
		}}},
	})
	must(t, err)
	caught := proxy.Sprung()
	u.add(statement, "1", statement)
	working, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		worker.Run(working)
	}()
	awaitCaught(t, proxy, caught+1)
	select {
	case <-delivered:
	case <-time.After(45 * time.Second):
		t.Errorf("nothing was delivered within 45 seconds after the reply to a %s was lost in silence", statement)
	}
	stop()
	<-over
}
