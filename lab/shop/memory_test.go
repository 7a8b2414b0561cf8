package shop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/lab/shop"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// service is a node of the service: one route over a store. The guard names an operation by its route, so the test has
// the same routes as the program.
func service(t *testing.T, s store.Store, route string, h http.Handler, mode onceward.Option) http.Handler {
	t.Helper()
	guard, err := onceward.New(s, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("sixteen random bytes or more"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(route, guard.Handler(h, mode))
	return mux
}

// post sends a request as a client does that repeats it. It returns the status, with the code of a problem, and "again"
// for an answer that was stored.
func post(h http.Handler, path, key, body string) string {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var problem onceward.Problem
	_ = json.Unmarshal(w.Body.Bytes(), &problem) // the shop's own answers are none
	if w.Header().Get("Idempotent-Replayed") == "true" {
		problem.Code = "again"
	}
	return strings.TrimSpace(fmt.Sprint(w.Code, " ", problem.Code))
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// provider makes refunds, and fails as a test likes.
type provider struct {
	asked []string      // the keys that it was asked with
	hold  chan struct{} // answers wait for it, unless it is nil
	cut   bool          // answers are lost
}

func (p *provider) ask(_ context.Context, key string) error {
	p.asked = append(p.asked, key)
	if p.hold != nil {
		<-p.hold
	}
	if p.cut {
		return errors.New("connection reset by peer")
	}
	return nil
}

func refunds(t *testing.T, s store.Store, p *provider) http.Handler {
	t.Helper()
	return service(t, s, "POST /refunds", shop.Refunds{Ask: p.ask}, onceward.Reserved(onceward.FailureUnknown))
}

func TestDuplicateInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{hold: make(chan struct{})}
		h := refunds(t, memory.New(), p)
		first := make(chan string)
		go func() { first <- post(h, "/refunds", "key-1", `{}`) }()
		synctest.Wait() // the provider has been asked

		want(t, "a duplicate in flight", post(h, "/refunds", "key-1", `{}`), "409 in-progress")
		close(p.hold)
		want(t, "the first", <-first, "201")
		want(t, "a retry", post(h, "/refunds", "key-1", `{}`), "201 again")
		want(t, "another request under the key", post(h, "/refunds", "key-1", `{"all": true}`), "422 mismatch")
		want(t, "the provider was asked", fmt.Sprint(len(p.asked)), "1")

		time.Sleep(25 * time.Hour) // at once: the clock of a synctest
		want(t, "a retry that comes too late", post(h, "/refunds", "key-1", `{}`), "201")
		want(t, "the provider's key", p.asked[0], p.asked[1]) // so it makes no second refund
	})
}

func TestProvidersAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{cut: true}
		h := refunds(t, memory.New(), p)
		want(t, "the request", post(h, "/refunds", "key-1", `{}`), "500")
		want(t, "a retry", post(h, "/refunds", "key-1", `{}`), "409 outcome-unknown")
		time.Sleep(25 * time.Hour)
		want(t, "a retry after a day", post(h, "/refunds", "key-1", `{}`), "409 outcome-unknown")
		want(t, "the provider was asked", fmt.Sprint(len(p.asked)), "1")
	})
}

// crashed is what is left of a store for a process that has crashed: nothing that it does is heard of.
type crashed struct{ store.Store }

var errCrashed = errors.New("the process is gone")

func (crashed) Extend(context.Context, store.Claim, time.Duration) error { return errCrashed }
func (crashed) Release(context.Context, store.Claim, string) error       { return errCrashed }
func (crashed) Abandon(context.Context, store.Claim, string) error       { return errCrashed }
func (crashed) Complete(context.Context, store.Claim, *store.Completion) (time.Time, error) {
	return time.Time{}, errCrashed
}

func TestCrashAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := &provider{}, memory.New()
		post(refunds(t, crashed{s}, p), "/refunds", "key-1", `{}`) // whatever it answers, its client hears nothing
		h := refunds(t, s, p)                                      // the next process
		time.Sleep(30 * time.Second)                               // the lease
		want(t, "a retry", post(h, "/refunds", "key-1", `{}`), "409 outcome-unknown")
		want(t, "the provider was asked", fmt.Sprint(len(p.asked)), "1")
	})
}
