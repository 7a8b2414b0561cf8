package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// slowClock makes every look at the store's clock take a while, so that a lease which counts from the reply is told apart
// from one that counts from the sending.
func (s *site) slowClock(t testing.TB, pause time.Duration) {
	t.Helper()
	exec(t, s.admin, fmt.Sprintf(`CREATE OR REPLACE FUNCTION onceward_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
		BEGIN
			PERFORM pg_sleep(%f);
			RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
		END $$`, pause.Seconds()))
}

// due is when the lease of a record ends, or the record expires, and what the server's clock shows.
func (s *site) due(t testing.TB, id string) (due, now time.Time) {
	t.Helper()
	var micros int64
	must(t, s.admin.QueryRow(context.Background(),
		`SELECT due, clock_timestamp() FROM onceward_record WHERE id = $1::uuid`, id).Scan(&micros, &now))
	return time.UnixMicro(micros), now
}

// awaitHeartbeats waits until a lease was extended so many times.
func (s *site) awaitHeartbeats(t testing.TB, id string, times int) {
	t.Helper()
	last, _ := s.due(t, id)
	for range times {
		eventually(t, "the lease is extended", 10*time.Second, func() bool {
			due, _ := s.due(t, id)
			extended := due.After(last)
			last = due
			return extended
		})
	}
}

// TestHeartbeatsLost cuts a store off while a handler of its runs (scenario 3): the handler is told before its lease is over
// by the server's clock, and one that asks before its effect makes none (scenario 2).
func TestHeartbeatsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	s.slowClock(t, 300*time.Millisecond)
	id := st.RecordID(accountID("key"))
	running := make(chan struct{})
	var left time.Duration
	var cause error
	route := guardOver(t, st).HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(running)
		<-r.Context().Done()
		due, now := s.due(t, id)
		left, cause = due.Sub(now), context.Cause(r.Context())
		if onceward.FromContext(r.Context()).CheckLease() == nil {
			_, _ = s.insert(context.Background(), "key")
		}
		proxy.Refuse(false) // so that it can be said at once that the outcome is unknown
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(1200*time.Millisecond))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	await(t, "the handler", running)
	s.awaitHeartbeats(t, id, 1)
	proxy.Refuse(true)
	proxy.DropAll()
	await(t, "the answer", done).wantProblem(t, http.StatusInternalServerError, "outcome-unknown", "E2: a lost lease")
	if !errors.Is(cause, onceward.ErrLeaseLost) || left <= 0 {
		t.Errorf("S5: the context ended for %v with %s of the lease left, want ErrLeaseLost before it is over", cause, left)
	}
	s.wantRows(t, "key", 0, "the handler asked before its effect")
	wantStateOf(t, st, "key", store.StateUnknown, "E2")
}

// TestHeartbeatsComeBack cuts a store off for less than a lease: the handler need not know.
func TestHeartbeatsComeBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	proxy := servers.NewProxy(t, s.url)
	st := s.store(t, pgxHandle, proxy.URL())
	id := st.RecordID(accountID("key"))
	running, goOn := make(chan struct{}), make(chan struct{})
	route := guardOver(t, st).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-goOn
		if err := errors.Join(r.Context().Err(), onceward.FromContext(r.Context()).CheckLease()); err != nil {
			t.Errorf("S5: the lease was kept, and the handler was told %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Lease(1500*time.Millisecond))
	done := make(chan httpReply, 1)
	go func() { done <- post(route, "key") }()
	await(t, "the handler", running)
	refused := make(chan struct{})
	proxy.CutRequest(func(sql string) bool {
		if !ofStore(sql) {
			return false
		}
		close(refused) // the next heartbeat is lost, and the one that follows at once
		return true
	})
	proxy.CutRequest(ofStore)
	await(t, "the heartbeat that is lost", refused)
	s.awaitHeartbeats(t, id, 1)
	close(goOn)
	await(t, "the answer", done).want(t, http.StatusCreated, false, "S5")
	wantStateOf(t, st, "key", store.StateCompleted, "S5")
	if n := proxy.Sprung(); n != 2 {
		t.Errorf("%d heartbeats were lost, want 2", n)
	}
}
