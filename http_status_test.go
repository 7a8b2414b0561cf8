package onceward_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// service is a route with the accepted policy, and its status handler beside it.
func service(t testing.TB, store store.Store, handler http.Handler, options ...onceward.Option) http.Handler {
	t.Helper()
	guard := newGuard(t, store)
	mux := http.NewServeMux()
	all := append([]onceward.Option{reserved, onceward.InFlightAccepted("/operations/")}, options...)
	mux.Handle("POST /payments", guard.Handler(handler, all...))
	mux.Handle("GET /operations/{key}", guard.StatusHandler(options...))
	return mux
}

func status(t testing.TB, a answer) onceward.Status {
	t.Helper()
	var s onceward.Status
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("section 6: %d %q is no status: %v", a.status, a.body, err)
	}
	if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("section 6: a status with %v", a.header)
	}
	return s
}

func ask(h http.Handler, location string, edits ...edit) answer {
	return serve(h, newRequest(http.MethodGet, location, "", "", edits...))
}

func TestAcceptedWhileInFlight(t *testing.T) {
	t.Parallel()
	var h http.Handler
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		a := post(h, "k", `{}`)
		a.want(t, "section 6: accepted", http.StatusAccepted, false)
		if a.header.Get("Location") != "/operations/k" || a.header.Get("Retry-After") != "1" {
			t.Errorf("section 6: 202 with %v", a.header)
		}
		if s := status(t, a); s.State != "in_progress" || s.Key != "k" {
			t.Errorf("section 6: 202 says %+v", s)
		}
		now := ask(h, a.header.Get("Location"))
		now.want(t, "section 6", http.StatusOK, false)
		if s := status(t, now); s.State != "in_progress" || s.Operation != "POST /payments" || s.CreatedAt == nil ||
			s.SettledAt != nil {
			t.Errorf("section 6: in flight the status is %+v", s)
		}
		if now.header.Get("Retry-After") == "" {
			t.Error("section 6: the status of an operation in flight has no Retry-After")
		}
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "the stored body")
	}}
	h = service(t, memory.New(), handler)
	post(h, "k", `{}`).want(t, "section 6", http.StatusCreated, false)
	after := ask(h, "/operations/k")
	s := status(t, after)
	if s.State != "completed" || s.StatusCode != http.StatusCreated || s.Location != "/payments/1" ||
		s.SettledAt == nil || s.ExpiresAt == nil {
		t.Errorf("section 6: afterwards the status is %+v", s)
	}
	if strings.Contains(after.body, "stored body") || after.header.Get("Retry-After") != "" {
		t.Errorf("section 6: the status of a completed operation has %v %s", after.header, after.body)
	}
	post(h, "k", `{}`).want(t, "section 6", http.StatusCreated, true)
	handler.wantRuns(t, "section 6", 1)
}

func TestStatusOfEachState(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		switch op := onceward.FromContext(r.Context()); op.Key() {
		case "released":
			op.NotExecuted()
		case "lost":
			op.Unknown()
		}
	}}
	store := memory.New()
	h := service(t, store, handler)
	for key, want := range map[string]string{"done": "completed", "released": "failed_retryable", "lost": "unknown"} {
		post(h, key, `{}`)
		a := ask(h, "/operations/"+key)
		if s := status(t, a); s.State != want || (s.StatusCode != 0) != (want == "completed") {
			t.Errorf("section 4: the status of %s is %+v, want %s", key, s, want)
		}
		if got := a.header.Get("Retry-After"); (got != "") != (want == "unknown") {
			t.Errorf("section 6: the status %s has Retry-After %q", want, got)
		}
		if s := status(t, a); (s.SettledAt != nil) != (want != "unknown") || (s.ExpiresAt != nil) != (want != "unknown") {
			t.Errorf("section 4: the status %s was settled at %v and expires at %v", want, s.SettledAt, s.ExpiresAt)
		}
		if got := stateOf(t, store, key); got.String() != want {
			t.Errorf("section 6: who asks for the status of %s leaves it %s, want %s", key, got, want)
		}
	}
	post(h, "busted", `{}`)
	if err := store.Bust(context.Background(), aliceID("busted"), false); err != nil {
		t.Fatal(err)
	}
	ask(h, "/operations/busted").wantProblem(t, "section 4", http.StatusNotFound, "key-not-found")
}

func TestStatusOfATombstone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		h := service(t, store, new(counted))
		post(h, "k", `{}`)
		time.Sleep(25 * time.Hour)
		ask(h, "/operations/k").
			wantProblem(t, "section 4: past its expiry, as if absent", http.StatusNotFound, "key-not-found")
		if n, err := store.Reap(context.Background(), 10, true); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		ask(h, "/operations/k").
			wantProblem(t, "section 4: expired is gone for every caller", http.StatusNotFound, "key-not-found")
	})
}

// TestStatusWithClocksApart: the store's clock decides what has expired, and a retry gets the same.
func TestStatusWithClocksApart(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"the node is behind": time.Hour, "the node is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(ahead) }))
				h := service(t, store, new(counted))
				post(h, "k", `{}`)
				time.Sleep(24*time.Hour - time.Minute)
				ask(h, "/operations/k").want(t, "S3: a minute before its expiry", http.StatusOK, false)
				time.Sleep(2 * time.Minute)
				ask(h, "/operations/k").
					wantProblem(t, "S3: a minute past its expiry", http.StatusNotFound, "key-not-found")
			})
		})
	}
}

// TestStatusThatCannotBeJudged: without the store's word on its expiry nothing is shown of a settled record.
func TestStatusThatCannotBeJudged(t *testing.T) {
	t.Parallel()
	store, events := newFaultyStore(), new(journal)
	guard := newGuard(t, store, observedBy(events))
	post(guard.Handler(new(counted), reserved), "k", `{}`).want(t, "section 6", http.StatusCreated, false)
	store.reserve = brokenReserve
	ask(guard.StatusHandler(), "/operations/k").wantProblem(t, "L2", http.StatusServiceUnavailable, "store-unavailable")
	if failed := observed[onceward.StoreFailedEvent](events); len(failed) != 1 || failed[0].Operation != "status" ||
		failed[0].Call != "reserve" {
		t.Errorf("M1: the failures seen are %+v", failed)
	}
}

func TestForeignStatusLooksLikeNone(t *testing.T) {
	t.Parallel()
	bySession := onceward.BindSession(func(r *http.Request) string { return r.Header.Get("Session") })
	session := func(name string) edit { return withHeader("Session", name) }
	store := memory.New()
	h := service(t, store, new(counted), bySession)
	post(h, "k", `{}`, session("one"))
	if s := status(t, ask(h, "/operations/k", session("one"))); s.State != "completed" {
		t.Errorf("L4: the caller's own status is %+v", s)
	}

	absent := ask(service(t, memory.New(), new(counted), bySession), "/operations/k", session("one"))
	absent.wantProblem(t, "section 6", http.StatusNotFound, "key-not-found")
	absent = absent.withoutInstance()
	for name, edits := range map[string][]edit{
		"another scope":               {as("bob"), session("one")},
		"another session":             {session("two")},
		"another scope's own session": {as("bob"), session("two")},
	} {
		a := ask(h, "/operations/k", edits...).withoutInstance()
		if a.status != absent.status || a.body != absent.body || fmt.Sprint(a.header) != fmt.Sprint(absent.header) {
			t.Errorf("section 6: %s: %d %v %s\nwant what an absent key gets: %d %v %s", name,
				a.status, a.header, a.body, absent.status, absent.header, absent.body)
		}
	}
	ask(h, "/operations/k").wantProblem(t, "L4: no session", http.StatusUnauthorized, "unauthenticated")
	ask(h, "/operations/k", session("one"), func(r *http.Request) { r.Header.Del("Authorization") }).
		wantProblem(t, "A7", http.StatusUnauthorized, "unauthenticated")

	// A status handler without BindSession shows nothing of a key that is bound to a session.
	unbound := newGuard(t, store).StatusHandler()
	ask(unbound, "/operations/k", session("one")).wantProblem(t, "L4", http.StatusNotFound, "key-not-found")
}

func TestStatusOfOddKeys(t *testing.T) {
	t.Parallel()
	keys := []string{
		"a/b", "/", "//", "a/../b", "a b", "a%2Fb", "100%", "?x=1", "#frag", "a&b=c", "a+b", ";v=1", ":", "~", `q"uote\`, ".", "..", "...", "./.",
		"<script>", strings.Repeat("/", 255),
	}
	var h http.Handler
	locations := make(map[string]string)
	handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
		if key := onceward.FromContext(r.Context()).Key(); locations[key] == "" {
			quoted := r.Header.Get("Idempotency-Key")
			locations[key] = post(h, quoted, `{}`).header.Get("Location")
		}
	}}
	store := memory.New()
	h = service(t, store, handler)
	for _, key := range keys {
		post(h, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)+`"`, `{}`).
			want(t, "section 6", http.StatusOK, false)
	}
	servers := map[string]*httptest.Server{
		"ServeMux": startServer(t, h), "plain": startServer(t, newGuard(t, store).StatusHandler()),
	}
	for _, key := range keys {
		for name, server := range servers {
			if key == "/" && name == "ServeMux" {
				continue // http.ServeMux takes a segment that is an escaped slash for the end of the path
			}
			location, err := url.Parse(locations[key])
			if err != nil || locations[key] == "" {
				t.Errorf("section 6: the Location for the key %q is %q, %v", key, locations[key], err)
				continue
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+location.String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer alice")
			res, err := server.Client().Transport.RoundTrip(request) // no redirects
			if err != nil {
				t.Fatal(err)
			}
			var s onceward.Status
			err = json.NewDecoder(res.Body).Decode(&s)
			res.Body.Close()
			if res.StatusCode != http.StatusOK || err != nil || s.Key != key {
				t.Errorf("section 6: under %s, %s shows %d, key %q, %v; want the key %q", name, locations[key],
					res.StatusCode, s.Key, err, key)
			}
		}
	}
}

func TestStatusHandlersThatAreRefused(t *testing.T) {
	t.Parallel()
	unscoped := newGuard(t, memory.New(), func(c *onceward.Config) { c.Scope = nil })
	if panicOf(func() { unscoped.StatusHandler() }) == nil {
		t.Error("section 6: a status handler without a scope was built")
	}
	if panicOf(func() { newGuard(t, memory.New()).StatusHandler(onceward.BindSession(nil)) }) == nil {
		t.Error("D9: a status handler with a bad option was built")
	}
}
