package breaker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/breaker"
)

func post(h http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestRequestsWhileOpen: each is answered at once with 503 and when to come again, the log stays quiet, and nothing is
// looked for in the store afterwards, because nothing was sent.
func TestRequestsWhileOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, told := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		var log bytes.Buffer
		guard, err := onceward.New(s, onceward.Config{
			Scope: onceward.SingleScope("alice"), Secret: []byte("the secret of the tests"),
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		h := guard.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs++ },
			onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("pay"))
		inside.fault = func(context.Context) error { return errDown }
		_ = get(t, s)
		told.want(t, "closed>open")
		before := inside.calls.Load()
		for i := range 1000 {
			w := post(h, fmt.Sprint("key", i))
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" {
				t.Fatalf("L2: %d with Retry-After %q, want 503 with 5", w.Code, w.Header().Get("Retry-After"))
			}
		}
		if log.Len() > 0 || runs > 0 {
			t.Errorf("L2: %d executions, and the log says\n%.1000s", runs, log.String())
		}
		inside.fault = nil
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := inside.calls.Load() - before; calls != 0 {
			t.Errorf("L2: %d calls to the store for requests that were never sent to it", calls)
		}
		if w := post(h, "key0"); w.Code != http.StatusOK || runs != 1 {
			t.Errorf("L2: %d after the store is back, %d executions", w.Code, runs)
		}
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := newSick()
		s, _ := around(t, inside, breaker.Config{ConsecutiveFailures: 1})
		ask := func(status int, body, retry string) {
			t.Helper()
			w := httptest.NewRecorder()
			s.Health().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			if w.Code != status || strings.TrimSpace(w.Body.String()) != body || w.Header().Get("Retry-After") != retry {
				t.Errorf("L2: health is %d, %s, Retry-After %q", w.Code, w.Body.String(), w.Header().Get("Retry-After"))
			}
		}
		ask(http.StatusOK, `{"breaker":"closed"}`, "")
		inside.fault = func(context.Context) error { return errDown }
		_ = get(t, s)
		ask(http.StatusServiceUnavailable, `{"breaker":"open"}`, "5")
		time.Sleep(6 * time.Second)
		ask(http.StatusOK, `{"breaker":"half_open"}`, "")
	})
}
