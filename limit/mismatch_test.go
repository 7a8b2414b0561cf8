package limit_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store/memory"
)

var instance = regexp.MustCompile(`"instance":"[^"]*"`)

// TestMismatchesTellNothing: when a scope's mismatches are used up, an existing key gets the same answer as a new one.
// Replays continue, and so do other scopes.
func TestMismatchesTellNothing(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"local": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := limit.Config{Limits: limit.Limits{Mismatches: limit.Rate{Limit: 2, Window: time.Hour}}}
				if shared {
					config.Counters = newCounters()
				}
				guard, err := onceward.New(memory.New(), onceward.Config{
					Scope:  func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil },
					Secret: []byte("the secret of the tests"), Logger: slog.New(slog.DiscardHandler), Limiter: newLimiter(t, config),
				})
				if err != nil {
					t.Fatal(err)
				}
				h := guard.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
					onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("pay"))
				post := func(scope, key, body string) *httptest.ResponseRecorder {
					r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
					r.Header.Set("Authorization", scope)
					r.Header.Set("Idempotency-Key", key)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					return w
				}
				want := func(what string, w *httptest.ResponseRecorder, status int) {
					t.Helper()
					if w.Code != status {
						t.Errorf("L1: %s is answered with %d %s, want %d", what, w.Code, w.Body, status)
					}
				}
				want("the first", post("alice", "taken", `{}`), http.StatusCreated)
				for range 2 {
					want("a mismatch", post("alice", "taken", `{"other":1}`), http.StatusUnprocessableEntity)
				}
				// The one that finds it used up is counted by the counters, and not before.
				want("one mismatch more", post("alice", "taken", `{"other":1}`), http.StatusTooManyRequests)
				for range 20 {
					taken, free := post("alice", "taken", `{"other":1}`), post("alice", "free", `{"other":1}`)
					want("a key that is taken", taken, http.StatusTooManyRequests)
					if text := instance.ReplaceAllString(taken.Body.String(), ""); free.Code != taken.Code ||
						instance.ReplaceAllString(free.Body.String(), "") != text ||
						free.Header().Get("Retry-After") != taken.Header().Get("Retry-After") ||
						free.Header().Get("RateLimit") != taken.Header().Get("RateLimit") {
						t.Fatalf("L1: a free key is answered with\n%d %v %s\nand one that is taken with\n%d %v %s",
							free.Code, free.Header(), free.Body, taken.Code, taken.Header(), taken.Body)
					}
					want("a replay", post("alice", "taken", `{}`), http.StatusCreated)
					want("another scope", post("bob", "taken", `{"other":1}`), http.StatusCreated)
					time.Sleep(time.Minute)
				}
				if !shared { // in which nothing comes back
					time.Sleep(10 * time.Minute)
					want("a free key, later", post("alice", "free", `{}`), http.StatusCreated)
					want("a mismatch, later", post("alice", "free", `{"other":1}`), http.StatusUnprocessableEntity)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}
