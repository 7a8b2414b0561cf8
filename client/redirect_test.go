package client_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/client"
	"github.com/onceward/onceward/store/memory"
)

// TestRedirects follows a redirect within the origin as the same operation, and none to another: the key neither gets
// lost nor leaks.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	leaked := func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		if r.Header.Get("Idempotency-Key") != "" || r.Header.Get("Idempotency-First-Sent") != "" {
			t.Errorf("another origin was sent %v", r.Header)
		}
	}
	other := httptest.NewServer(http.HandlerFunc(leaked))
	t.Cleanup(other.Close)
	handler := &counted{}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guarded(t, memory.New(), handler, reserved))
	keys := make(chan string, 10)
	to := func(status int, where string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			keys <- r.Header.Get("Idempotency-Key")
			http.Redirect(w, r, where, status)
		}
	}
	mux.Handle("POST /moved", to(http.StatusPermanentRedirect, "/payments"))
	mux.Handle("POST /away", to(http.StatusTemporaryRedirect, other.URL))
	mux.Handle("POST /see", to(http.StatusSeeOther, "/result"))
	mux.Handle("POST /see-away", to(http.StatusSeeOther, other.URL+"/result"))
	mux.HandleFunc("GET /result", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("a GET was sent %v", r.Header)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := newClient(t, client.Config{Base: &http.Transport{}})
	t.Cleanup(c.CloseIdleConnections)
	at := func(path string) func(*http.Request) {
		return func(r *http.Request) {
			var err error
			if r.URL, err = url.Parse(server.URL + path); err != nil {
				t.Error(err)
			}
			r.Host = ""
		}
	}
	byHand := func(r *http.Request) { r.Header.Set("Idempotency-Key", "by-hand") }

	moved := post(t.Context(), c, at("/moved"))
	moved.want(t, http.StatusCreated, client.OutcomeAnswered, false)
	if key := <-keys; key != `"`+moved.key+`"` {
		t.Errorf("the key was %s, and then %s", key, moved.key)
	}
	again := post(client.WithKey(t.Context(), moved.key), c, at("/payments"))
	again.want(t, http.StatusCreated, client.OutcomeAnswered, true)

	for _, configure := range []func(*http.Request){func(*http.Request) {}, byHand} {
		away := post(t.Context(), c, at("/away"), configure)
		if !errors.Is(away.err, client.ErrRedirectedAway) || away.outcome != client.OutcomeNotExecuted ||
			elsewhere.Load() != 0 {
			t.Errorf("got %+v", away)
		}
		unfinished := (*client.UnfinishedError)(nil)
		if key := <-keys; !errors.As(away.err, &unfinished) || key != `"`+unfinished.Key+`"` {
			t.Errorf("the key %s is %+v in the error", key, unfinished)
		}
		for _, path := range []string{"/see", "/see-away"} {
			if seen := post(t.Context(), c, at(path), configure); seen.err != nil || seen.status != http.StatusOK {
				t.Errorf("%s: %+v", path, seen)
			}
			<-keys
		}
		if elsewhere.Swap(0) != 1 {
			t.Error("the result was not fetched from the other origin")
		}
	}
}

// TestARedirectToAPageIsNoAnswer redirects an operation as what stands in front of a service does when it wants the
// caller to log in, or to use https: net/http gets that page, which says nothing of the operation.
func TestARedirectToAPageIsNoAnswer(t *testing.T) {
	t.Parallel()
	for _, each := range []struct {
		redirect, page int
		header         map[string]string
		want           client.Outcome
	}{
		{http.StatusMovedPermanently, 200, nil, client.OutcomeUnknown},
		{http.StatusFound, 200, nil, client.OutcomeUnknown},
		{http.StatusFound, 200, map[string]string{"Idempotent-Replayed": "true"}, client.OutcomeAnswered},
		{http.StatusSeeOther, 200, nil, client.OutcomeAnswered},
		{http.StatusSeeOther, 404, nil, client.OutcomeUnknown}, // the operation was not refused
	} {
		moved := line{status: each.redirect, header: map[string]string{"Location": "/page"}}
		maps.Copy(moved.header, each.header)
		away := line{status: http.StatusFound, header: map[string]string{"Location": "http://elsewhere.test/page"}}
		for _, given := range []func(*http.Request){
			func(r *http.Request) { *r = *r.WithContext(client.WithKey(r.Context(), "a")) },
			func(r *http.Request) { r.Header.Set("Idempotency-Key", "a") },
		} {
			service := &script{lines: []line{moved, away, answers(each.page)}}
			r := post(t.Context(), newClient(t, client.Config{Base: service}), given)
			if r.want(t, each.page, each.want, false); r.key != "a" {
				t.Errorf("the response has the key %q", r.key)
			}
			for _, seen := range service.sent[1:] {
				if seen.Header.Get("Idempotency-Key") != "" || seen.Header.Get("Idempotency-First-Sent") != "" {
					t.Errorf("%s was sent %v", seen.URL, seen.Header)
				}
			}
		}
	}
}

// TestTheStatusIsOfTheSameOrigin asks for no status elsewhere, where the credentials of the request would leak: the
// operation itself is sent again instead.
func TestTheStatusIsOfTheSameOrigin(t *testing.T) {
	t.Parallel()
	for where, follows := range map[string]bool{
		"/operations/a": true, "http://payments.test:80/operations/a": true, "HTTP://PAYMENTS.test/operations/a": true,
		"http://elsewhere.test/a": false, "https://payments.test/operations/a": false, "//elsewhere.test/a": false,
		"http://payments.test:81/a": false, "http://x:y@payments.test/a": false, ":": false, "": false,
	} {
		accepted := line{
			status: 202, body: `{"key":"a","state":"in_progress"}`,
			header: map[string]string{"Content-Type": "application/json", "Location": where, "Retry-After": "0"},
		}
		done := line{status: 200, body: `{"key":"a","state":"completed"}`}
		service := &script{lines: []line{accepted, done, created}}
		if !follows {
			service.lines = []line{accepted, created}
		}
		c := newClient(t, client.Config{Base: service, MinBackoff: 1, MaxBackoff: 1})
		got := post(client.WithKey(t.Context(), "a"), c)
		got.want(t, http.StatusCreated, client.OutcomeAnswered, false)
		if asked := service.sent[1].Method == http.MethodGet; asked != follows {
			t.Errorf("%s: %s %s", where, service.sent[1].Method, service.sent[1].URL)
		} else if asked {
			h := service.sent[1].Header
			if h.Get("Authorization") != "alice" || h.Get("Idempotency-Key") != "" || h.Get("Content-Type") != "" ||
				!strings.HasPrefix(service.sent[1].URL.Path, "/operations/") {
				t.Errorf("it was asked for %s with %v", service.sent[1].URL, h)
			}
		}
	}
}
