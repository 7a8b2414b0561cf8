package postgres_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// Scenario 47: hundreds of requests are refused in an outage. They leave no work behind that hammers the server, and
// a grant whose reply was lost is released when it is back.
func TestRefusedRequestsLeaveTheServerAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	direct := s.store(t, pgxHandle, s.url)
	runs := 0
	h := guardOver(t, st).HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(5*time.Minute))
	post(h, "before").want(t, http.StatusCreated, false, "the server is up")

	proxy.Refuse(true)
	proxy.CutReply(matching(`onceward_record`))
	post(h, "lost").wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "L2")
	wantStateOf(t, direct, "lost", store.StateInProgress, "the grant had landed")
	proxy.DropAll()
	const requests = 400
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			post(h, fmt.Sprint("k", i)).wantProblem(t, http.StatusServiceUnavailable, "store-unavailable", "L2")
		})
	}
	all.Wait()
	refused := proxy.Connections()
	time.Sleep(5 * time.Second) // what is measured is how often somebody knocks in that time
	if n := proxy.Connections() - refused; n > 40 {
		t.Errorf("L2: %d attempts to connect in the 5 s after %d requests were refused, want a few", n, requests)
	}

	proxy.Refuse(false)
	eventually(t, "the lost grant is released", 30*time.Second, func() bool {
		rec, err := direct.Get(t.Context(), accountID("lost"))
		return err == nil && rec.State == store.StateRetryable
	})
	post(h, "lost").want(t, http.StatusCreated, false, "S9: a retry executes")
	if runs != 2 {
		t.Errorf("I1: %d runs, want 2", runs)
	}
}
