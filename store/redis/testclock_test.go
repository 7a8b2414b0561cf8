package redis_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestTestClock: a lease ends, the sweeper finds it, and an answer expires, without waiting for it.
func TestTestClock(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	clock := redis.NewTestClock(t, s)
	reserve := func(key string, nonce byte) store.Verdict {
		t.Helper()
		v, err := s.Reserve(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "clock", Key: key}, Operation: "test", Nonce: store.Nonce{nonce},
			Fingerprints: []store.Fingerprint{{Sum: [32]byte{1}}}, Lease: time.Hour, Retention: 24 * time.Hour,
		})
		must(t, err)
		return v
	}
	sweep := func(want int) {
		t.Helper()
		if swept, err := s.Sweep(t.Context(), 10); swept != want || err != nil {
			t.Fatalf("swept %d records (%v), want %d", swept, err, want)
		}
	}
	lost, kept := reserve("lost", 1), reserve("kept", 2)
	done := &store.Completion{Response: store.Response{Status: http.StatusCreated}}
	expires, err := s.Complete(t.Context(), store.Claim{ID: kept.Record.ID, Attempt: kept.Record.Attempt}, done)
	must(t, err)
	sweep(0)
	if v := reserve("lost", 3); v.Decision != store.DecisionInProgress {
		t.Fatalf("within the lease: %s", v.Decision)
	}

	clock.Advance(time.Hour)
	sweep(1)
	v := reserve("lost", 4)
	ahead := v.Now.Sub(lost.Now)
	if v.Decision != store.DecisionUnknown || ahead < time.Hour || ahead > time.Hour+await.Limit {
		t.Fatalf("after the lease: %s, %s ahead", v.Decision, ahead)
	}
	if v := reserve("kept", 5); v.Decision != store.DecisionReplay || !v.Record.ExpiresAt.Equal(expires) {
		t.Fatalf("after the lease: %s, expires at %s, want %s", v.Decision, v.Record.ExpiresAt, expires)
	}

	clock.Advance(25 * time.Hour)
	if v := reserve("kept", 6); v.Decision != store.DecisionExecute || v.Origin != store.OriginRecreated {
		t.Fatalf("after the retention: %s, %s", v.Decision, v.Origin)
	}
	if v := reserve("new", 7); v.Decision != store.DecisionExecute || v.Record.LeaseUntil.Sub(v.Now) != time.Hour {
		t.Fatalf("a new record: %s, leased for %s", v.Decision, v.Record.LeaseUntil.Sub(v.Now))
	}

	other := open(t, server.URL(), redis.WithPrefix(prefix))
	failed := &failing{}
	failed.run(func() { redis.NewTestClock(failed, other) })
	if !strings.Contains(failed.fatal, "a prefix of the test's own") {
		t.Errorf("a clock for keys that hold records: %q", failed.fatal)
	}
}

// TestTestClockUnderAGuard: every call that a guard makes has the moved time, and the server's at the end of the test.
func TestTestClockUnderAGuard(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	test := &failing{}
	clock := redis.NewTestClock(test, s)
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("sixteen random bytes or more"),
		StoreTimeout: await.Limit, SettleTimeout: await.Limit,
	})
	must(t, err)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}, onceward.Reserved(onceward.FailureUnknown)))
	post := func(want string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{}`))
		r.Header.Set("Idempotency-Key", "key-1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if got := fmt.Sprint(w.Code, w.Header().Get("Idempotent-Replayed")); got != want {
			t.Errorf("got %s, want %s: %s", got, want, w.Body)
		}
	}
	post("201")
	post("201true")
	clock.Advance(25 * time.Hour)
	post("201")
	post("201true")
	for _, cleanup := range test.cleanups {
		cleanup()
	}
	v, err := s.Reserve(t.Context(), &store.Reservation{
		ID: store.ID{Scope: "shop", Key: "key-2"}, Operation: "test", Nonce: store.Nonce{1},
		Fingerprints: []store.Fingerprint{{}},
		Lease:        time.Minute, Retention: time.Hour,
	})
	if must(t, err); time.Until(v.Now).Abs() > time.Hour {
		t.Errorf("after the test the store's time is %s", v.Now)
	}
}

// failing is a test of a user's.
type failing struct {
	cleanups []func()
	fatal    string
}

func (f *failing) Helper()                {}
func (f *failing) Cleanup(cleanup func()) { f.cleanups = append(f.cleanups, cleanup) }

func (f *failing) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *failing) run(part func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		part()
	}()
	<-ended
}
