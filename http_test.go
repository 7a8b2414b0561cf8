package onceward_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// wantOncePerPath sends each path twice and expects one execution of each, under the operation named for it.
func wantOncePerPath(t *testing.T, h http.Handler, handler *counted, names map[string]string) {
	t.Helper()
	for path := range names {
		for i := range 2 {
			serve(h, newRequest(http.MethodPost, path, "key for "+strings.ReplaceAll(path, "/", "-"), `{}`,
				func(r *http.Request) { r.Header["Idempotency-Key"] = []string{`"` + path + `"`} })).
				want(t, "section 1, operation", http.StatusOK, i == 1)
		}
	}
	handler.wantRuns(t, "section 1, operation", int64(len(names)))
}

// namer records the operation's name under the path it was reached by.
func namer(seen map[string]string) *counted {
	return &counted{then: func(_ http.ResponseWriter, r *http.Request) {
		seen[r.URL.Path] = onceward.FromContext(r.Context()).Name()
	}}
}

func wantNames(t *testing.T, got, want map[string]string) {
	t.Helper()
	for path, name := range want {
		if got[path] != name {
			t.Errorf("section 1: the operation of POST %s is %q, want %q", path, got[path], name)
		}
	}
}

func TestUnderServeMux(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	handler := namer(seen)
	guard := newGuard(t, memory.New())
	protect := guard.Middleware(reserved)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", protect(handler))
	mux.Handle("POST /accounts/{id}/payments", protect(handler))
	mux.Handle("/anything/", protect(handler))
	mux.Handle("POST /named", guard.HandlerFunc(handler.ServeHTTP, reserved, onceward.OperationName("pay")))
	want := map[string]string{
		"/payments": "POST /payments", "/accounts/7/payments": "POST /accounts/{id}/payments",
		"/anything/x": "POST /anything/", "/named": "pay",
	}
	wantOncePerPath(t, mux, handler, want)
	wantNames(t, seen, want)
}

func TestOneNameDoesNotMakeTwoPathsOne(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.OperationName("pay"))
	serve(h, newRequest(http.MethodPost, "/a", "k", `{}`)).want(t, "F1", http.StatusCreated, false)
	serve(h, newRequest(http.MethodPost, "/b", "k", `{}`)).
		wantProblem(t, "F1", http.StatusUnprocessableEntity, "mismatch")
	handler.wantRuns(t, "F1", 1)
}

func TestRoutesThatAreRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		options   []onceward.Option
		configure func(*onceward.Config)
		says      string
	}{
		"no mode":                      {options: nil, says: "no mode of execution"},
		"no word on failures":          {options: []onceward.Option{onceward.Reserved(0)}, says: "what does a failure"},
		"a failure that is none":       {options: []onceward.Option{onceward.Reserved(4)}, says: "FailureUnknown"},
		"transactional on memory":      {options: []onceward.Option{onceward.Transactional()}, says: "transactions"},
		"retention under an hour":      {options: []onceward.Option{reserved, onceward.Retain(time.Hour - 1)}, says: "Retain"},
		"a lease that is too short":    {options: []onceward.Option{reserved, onceward.Lease(time.Millisecond)}, says: "Lease"},
		"a lease of 100 years":         {options: []onceward.Option{reserved, onceward.Lease(100 * year)}, says: "Lease"},
		"a lease past the longest":     {options: []onceward.Option{reserved, onceward.Lease(onceward.MaxLease + 1)}, says: "24h"},
		"retention for 100 years":      {options: []onceward.Option{reserved, onceward.Retain(100 * year)}, says: "Retain"},
		"a deadline that is too short": {options: []onceward.Option{reserved, onceward.Deadline(1)}, says: "Deadline"},
		"a response of a terabyte":     {options: []onceward.Option{reserved, onceward.ResponseLimit(1 << 40)}, says: "ResponseLimit"},
		"a tolerance of all the time":  {options: []onceward.Option{reserved, onceward.CheckFirstSent(4*time.Hour, 20*time.Hour)}, says: "tolerance"},
		"no deadline":                  {options: []onceward.Option{reserved, onceward.Deadline(0)}, says: "Deadline"},
		"no wait":                      {options: []onceward.Option{reserved, onceward.InFlightWait(0)}, says: "Wait"},
		"a status path without slash":  {options: []onceward.Option{reserved, onceward.InFlightAccepted("/operations")}, says: "slash"},
		"a relative status path":       {options: []onceward.Option{reserved, onceward.InFlightAccepted("operations/")}, says: "slash"},
		"no methods":                   {options: []onceward.Option{reserved, onceward.Methods()}, says: "Methods"},
		"a negative response limit":    {options: []onceward.Option{reserved, onceward.ResponseLimit(-1)}, says: "ResponseLimit"},
		"a lost policy that is none":   {options: []onceward.Option{reserved, onceward.OnLost(2)}, says: "OnLost"},
		"no session function":          {options: []onceward.Option{reserved, onceward.BindSession(nil)}, says: "BindSession"},
		"requests past the retention":  {options: []onceward.Option{reserved, onceward.CheckFirstSent(23*time.Hour+time.Second, time.Hour)}, says: "kept for 24h"},
		"a negative tolerance":         {options: []onceward.Option{reserved, onceward.CheckFirstSent(time.Hour, -1)}, says: "tolerance"},
		"no scope":                     {options: []onceward.Option{reserved}, configure: func(c *onceward.Config) { c.Scope = nil }, says: "Scope"},
		"a default that is refused":    {options: []onceward.Option{reserved}, configure: func(c *onceward.Config) { c.Defaults = []onceward.Option{onceward.Retain(0)} }, says: "Retain"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var configure []func(*onceward.Config)
			if test.configure != nil {
				configure = append(configure, test.configure)
			}
			guard := newGuard(t, memory.New(), configure...)
			middleware, err := guard.Route(test.options...)
			if err == nil || middleware != nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("E5, D9: Route = %v; want an error that says %q", err, test.says)
			}
			for kind, build := range map[string]func(){
				"Handler":     func() { guard.Handler(new(counted), test.options...) },
				"HandlerFunc": func() { guard.HandlerFunc(new(counted).ServeHTTP, test.options...) },
				"Middleware":  func() { guard.Middleware(test.options...) },
			} {
				if refused := panicOf(build); refused == nil {
					t.Errorf("D9: %s built the route", kind)
				}
			}
		})
	}
}

const year = 365 * 24 * time.Hour

func TestTheLongestLeaseAndRetention(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), &counted{then: func(w http.ResponseWriter, r *http.Request) {
		onceward.FromContext(r.Context()).Retain(math.MaxInt64)
		w.WriteHeader(http.StatusCreated)
	}}
	longest := []onceward.Option{
		reserved, onceward.Lease(onceward.MaxLease), onceward.Retain(onceward.MaxRetention),
	}
	post(newGuard(t, store).Handler(handler, longest...), "k", `{}`).want(t, "section 11", http.StatusCreated, false)
	if rec, err := store.Get(t.Context(), aliceID("k")); err != nil || rec.Retention != onceward.MaxRetention {
		t.Errorf("section 11: the answer is kept for %s (%v), want %s", rec.Retention, err, onceward.MaxRetention)
	}
}

// panicOf runs f and returns what it panicked with.
func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := onceward.New(nil, onceward.Config{Secret: testSecret}); err == nil {
		t.Error("New accepted no store")
	}
	for name, config := range map[string]onceward.Config{
		"a profile that is none":    {Profile: 2},
		"a negative cap of waiters": {MaxWaiters: -1},
		"a negative store timeout":  {StoreTimeout: -1},
		"a negative settle timeout": {SettleTimeout: -1},
		"a store timeout of 1 ns":   {StoreTimeout: 1},
	} {
		config.Secret = testSecret
		if _, err := onceward.New(memory.New(), config); err == nil {
			t.Errorf("New accepted %s", name)
		}
	}
}

func TestARouteOverridesTheDefaults(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	guard := newGuard(t, memory.New(), func(c *onceward.Config) {
		c.Defaults = []onceward.Option{reserved, onceward.BodyLimit(1)}
	})
	post(guard.Handler(handler), "k1", `{}`).
		wantProblem(t, "the default limit", http.StatusRequestEntityTooLarge, "body-too-large")
	post(guard.Handler(handler, onceward.BodyLimit(2)), "k2", `{}`).
		want(t, "the route's own limit", http.StatusCreated, false)
}

func TestWhoCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scope  onceward.ScopeFunc
		status int
		code   string
	}{
		"not known":          {byToken, http.StatusUnauthorized, "unauthenticated"},
		"an empty scope":     {onceward.SingleScope(""), http.StatusUnauthorized, "unauthenticated"},
		"cannot be asked":    {func(*http.Request) (string, error) { return "x", errors.New("down") }, http.StatusServiceUnavailable, "store-unavailable"},
		"a wrapped sentinel": {func(*http.Request) (string, error) { return "", errors.Join(onceward.ErrUnauthenticated) }, http.StatusUnauthorized, "unauthenticated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, handler := memory.New(), new(counted)
			guard := newGuard(t, store, func(c *onceward.Config) { c.Scope = test.scope })
			h := guard.Handler(handler, reserved)
			a := post(h, "k", `{}`, func(r *http.Request) { r.Header.Del("Authorization") })
			a.wantProblem(t, "D3", test.status, test.code)
			handler.wantRuns(t, "D3", 0)
			wantNothingStored(t, "A7", store)
		})
	}
	t.Run("a stored answer is not for strangers", func(t *testing.T) {
		t.Parallel()
		handler := new(counted)
		h := newGuard(t, memory.New()).Handler(handler, reserved)
		post(h, "k", `{}`)
		a := post(h, "k", `{}`, func(r *http.Request) { r.Header.Del("Authorization") })
		a.wantProblem(t, "A7", http.StatusUnauthorized, "unauthenticated")
		if strings.Contains(a.body, "execution") {
			t.Error("A7: the stored body was sent to a caller without credentials")
		}
		post(h, "k", `{}`).want(t, "A7: a 401 is not stored", http.StatusCreated, true)
	})
	t.Run("a single scope", func(t *testing.T) {
		t.Parallel()
		handler := new(counted)
		guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Scope = onceward.SingleScope("all") })
		h := guard.Handler(handler, reserved)
		post(h, "k", `{}`, as("alice"))
		post(h, "k", `{}`, as("bob")).want(t, "section 1", http.StatusCreated, true)
		handler.wantRuns(t, "section 1", 1)
	})
}

func TestMethodsThatWouldNeverMatch(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	for _, methods := range [][]string{{"post"}, {"Post"}, {http.MethodPost, "patch"}, {""}} {
		_, err := guard.Route(reserved, onceward.Methods(methods...))
		if err == nil || !strings.Contains(err.Error(), "Methods") {
			t.Errorf("H6: Methods(%q): %v; want an error that names the option", methods, err)
		}
	}
}

func TestTheWarningOfAShortRetention(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	guard := newGuard(t, memory.New(), func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	warnings := func() int { return strings.Count(log.String(), "less than a day") }
	short := []onceward.Option{reserved, onceward.Retain(2 * time.Hour)}

	w := new(work)
	for i := range 5 {
		call := someCall
		call.Key = fmt.Sprint(i)
		if _, err := guard.Do(t.Context(), call, w.do, short...); err != nil {
			t.Fatal(err)
		}
	}
	if got := warnings(); got != 0 {
		t.Errorf("section 11: 5 calls warned %d times", got)
	}
	guard.Handler(new(counted), reserved)
	if got := warnings(); got != 0 {
		t.Errorf("section 11: a route that keeps its answers for a day warned %d times", got)
	}
	h := guard.Handler(new(counted), short...)
	for i := range 5 {
		post(h, fmt.Sprint(i), `{}`)
	}
	if got := warnings(); got != 1 {
		t.Errorf("section 11: a route and its 5 requests warned %d times, want once", got)
	}
}
