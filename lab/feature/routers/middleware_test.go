package routers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func newGuard(t testing.TB, s store.Store, configure ...func(*onceward.Config)) *onceward.Guard {
	t.Helper()
	config := onceward.Config{
		Scope:  onceward.SingleScope("alice"),
		Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit, Logger: quiet,
	}
	for _, f := range configure {
		f(&config)
	}
	guard, err := onceward.New(s, config)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

// servedAnswer is what a client sees.
type servedAnswer struct {
	status   int
	replayed bool
	location string
	body     string
}

func answered(res *http.Response) (servedAnswer, error) {
	body, err := io.ReadAll(res.Body)
	replayed := res.Header.Get("Idempotent-Replayed") == "true"
	location := res.Header.Get("Location")
	return servedAnswer{status: res.StatusCode, replayed: replayed, location: location, body: string(body)}, err
}

func (a servedAnswer) want(t testing.TB, rule string, status int, replayed bool) {
	t.Helper()
	if a.status != status || a.replayed != replayed {
		t.Errorf("%s: got %d, replayed %t, body %q; want %d, replayed %t", rule, a.status, a.replayed, a.body, status,
			replayed)
	}
}

func (a servedAnswer) wantProblem(t testing.TB, rule string, status int, code string) onceward.Problem {
	t.Helper()
	var p onceward.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != status || p.Code != code {
		t.Errorf("%s: got %d with %q, %v; want %d %s", rule, a.status, a.body, err, status, code)
	}
	return p
}

// keyed gives a request its key and its type.
func keyed(r *http.Request, key string) *http.Request {
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)+`"`)
	return r
}

// serve lets a handler answer in this process.
func serve(t testing.TB, h http.Handler, r *http.Request) servedAnswer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	a, err := answered(w.Result())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// post is a POST, served in this process.
func post(t testing.TB, h http.Handler, path, key string) servedAnswer {
	t.Helper()
	return serve(t, h, keyed(httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{}`)), key))
}

// sendTo is a POST over the network.
func sendTo(t testing.TB, client *http.Client, target, key string) servedAnswer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(keyed(r, key))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	a, err := answered(res)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// counted is a handler that knows how often it ran.
type counted struct{ runs atomic.Int64 }

func (c *counted) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.runs.Add(1)
	w.WriteHeader(http.StatusCreated)
}

func (c *counted) wantRuns(t testing.TB, rule string, want int64) {
	t.Helper()
	if got := c.runs.Load(); got != want {
		t.Errorf("%s: the handler ran %d times, want %d", rule, got, want)
	}
}

func TestUnderChi(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	runs := 0
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		runs++
		seen[r.URL.Path] = onceward.FromContext(r.Context()).Name()
	})
	protect := newGuard(t, memory.New()).Middleware(onceward.Reserved(onceward.FailureUnknown))
	router := chi.NewRouter()
	router.Method(http.MethodPost, "/payments", protect(handler))
	router.With(protect).Post("/accounts/{id}/payments", handler)
	router.Route("/group", func(r chi.Router) {
		r.Use(protect)
		r.Post("/{id}", handler)
	})
	paths := []string{"/payments", "/accounts/7/payments", "/group/7"}
	for _, path := range paths {
		post(t, router, path, path).want(t, "section 1, operation", http.StatusOK, false)
		post(t, router, path, path).want(t, "section 1, operation", http.StatusOK, true)
	}
	if runs != len(paths) {
		t.Errorf("section 1, operation: the handler ran %d times, want %d", runs, len(paths))
	}
	// A middleware in front of a router cannot see which of its routes it leads to: one name stands for all of them.
	for path, name := range map[string]string{
		"/payments": "POST /payments", "/accounts/7/payments": "POST /accounts/{id}/payments", "/group/7": "POST /group/*",
	} {
		if seen[path] != name {
			t.Errorf("section 1: the operation of POST %s is %q, want %q", path, seen[path], name)
		}
	}
	for _, path := range []string{"/group/8", "/payments"} {
		post(t, router, path, "/group/7").
			wantProblem(t, "F1: the key of another path", http.StatusUnprocessableEntity, "mismatch")
	}
}

// TestInFrontOfChi: there is no pattern yet, and all requests would have one name. A name that is given counts.
func TestInFrontOfChi(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options []onceward.Option
		status  int
		runs    int64
	}{
		"without a name": {nil, http.StatusInternalServerError, 0},
		"with one":       {[]onceward.Option{onceward.OperationName("all")}, http.StatusCreated, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler, router := new(counted), chi.NewRouter()
			options := append(test.options, onceward.Reserved(onceward.FailureUnknown))
			router.Use(newGuard(t, memory.New()).Middleware(options...))
			router.Post("/accounts/{id}", handler.ServeHTTP)
			a := post(t, router, "/accounts/7", "k")
			if a.want(t, "section 1, operation", test.status, false); test.runs == 0 {
				a.wantProblem(t, "section 1, operation", test.status, "operation-unnamed")
			}
			handler.wantRuns(t, "section 1, operation", test.runs)
		})
	}
}

// routers mount one protected handler at /a/… and at /b/….
var routers = map[string]func(guard *onceward.Guard, handler http.Handler) http.Handler{
	"chi, mounted": func(guard *onceward.Guard, handler http.Handler) http.Handler {
		router := chi.NewRouter()
		for _, prefix := range []string{"/a", "/b"} {
			router.Route(prefix, func(r chi.Router) {
				r.With(guard.Middleware(onceward.Reserved(onceward.FailureUnknown))).Post("/*", handler.ServeHTTP)
			})
		}
		return router
	},
	"chi, StripPrefix in it": func(guard *onceward.Guard, handler http.Handler) http.Handler {
		pay := guard.Handler(handler, onceward.Reserved(onceward.FailureUnknown), onceward.OperationName("pay"))
		router := chi.NewRouter()
		for _, prefix := range []string{"/a", "/b"} {
			router.Mount(prefix, http.StripPrefix(prefix, pay))
		}
		return router
	},
}

// forms are those in which a target reaches the guard.
var forms = map[string]func(t *testing.T, h http.Handler) func(key, path string) servedAnswer{
	"origin-form": func(t *testing.T, h http.Handler) func(key, path string) servedAnswer {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return func(key, path string) servedAnswer { return sendTo(t, server.Client(), server.URL+path, key) }
	},
	"absolute-form": func(t *testing.T, h http.Handler) func(key, path string) servedAnswer {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.RequestURI, "http://") {
				t.Errorf("the target is %q, want an absolute one", r.RequestURI)
			}
			h.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		proxy, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{Proxy: http.ProxyURL(proxy)}
		t.Cleanup(transport.CloseIdleConnections)
		return func(key, path string) servedAnswer {
			return sendTo(t, &http.Client{Transport: transport}, "http://api.example.com"+path, key)
		}
	},
	"HTTP/2": func(t *testing.T, h http.Handler) func(key, path string) servedAnswer {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("the request came by %s, want HTTP/2", r.Proto)
			}
			h.ServeHTTP(w, r)
		}))
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.Close)
		return func(key, path string) servedAnswer { return sendTo(t, server.Client(), server.URL+path, key) }
	},
	"CGI, kept in front": func(t *testing.T, h http.Handler) func(key, path string) servedAnswer {
		kept := onceward.KeepTarget(h)
		return func(key, path string) servedAnswer {
			r, err := cgi.RequestFromMap(map[string]string{
				"REQUEST_METHOD": http.MethodPost, "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "api.example.com",
				"REQUEST_URI": path,
			})
			if err != nil {
				t.Fatal(err)
			}
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(`{}`)), 2
			return serve(t, kept, keyed(r, key))
		}
	},
	"none, kept in front": func(t *testing.T, h http.Handler) func(key, path string) servedAnswer {
		kept := onceward.KeepTarget(h)
		return func(key, path string) servedAnswer { return serve(t, kept, withoutTarget(path, key)) }
	},
}

// withoutTarget is a request as an adapter makes it that leaves RequestURI empty.
func withoutTarget(path, key string) *http.Request {
	r := keyed(httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{}`)), key)
	r.RequestURI = ""
	return r
}

// TestTargetsOfAllForms: two routes never look like one, and one route does not look like two, whatever the form of the
// target and whatever chi does to it (scenario 49).
func TestTargetsOfAllForms(t *testing.T) {
	t.Parallel()
	for router, mount := range routers {
		t.Run(router, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := mount(newGuard(t, memory.New()), handler)
			to := make(map[string]func(key, path string) servedAnswer, len(forms))
			for form, start := range forms {
				to[form] = start(t, h)
			}
			runs := int64(0)
			for first := range forms {
				for second := range forms {
					key := first + "-then-" + second
					to[first](key, "/a/pay").want(t, first, http.StatusCreated, false)
					to[second](key, "/a/pay?").want(t, "F1: "+key, http.StatusCreated, true)
					for _, other := range []string{"/b/pay", "/a/pay/", "/a/pay%2F", "/a/pay?x=1"} {
						to[second](key, other).
							wantProblem(t, "F1: "+key+", "+other, http.StatusUnprocessableEntity, "mismatch")
					}
					key += "-escaped"
					to[first](key, "/a/x%2Fy").want(t, first, http.StatusCreated, false)
					to[second](key, "/a/x%2Fy").want(t, "F1: "+key, http.StatusCreated, true)
					to[second](key, "/a/x/y").wantProblem(t, "F1: "+key, http.StatusUnprocessableEntity, "mismatch")
					runs += 2
				}
			}
			handler.wantRuns(t, "F1", runs)
		})
	}
}

// TestStatusOfOddKeys: the address of a status leads to it, whatever stands in the key.
func TestStatusOfOddKeys(t *testing.T) {
	t.Parallel()
	keys := []string{
		"a/b", "/", "//", "a/../b", "a b", "a%2Fb", "100%", "?x=1", "#frag", "a&b=c", "a+b", ";v=1", ":", "~", `q"uote\`,
		".", "..", "...", "./.", "<script>", strings.Repeat("/", 255),
	}
	guard := newGuard(t, memory.New())
	locations := make(map[string]string)
	var h http.Handler
	h = guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		key := onceward.FromContext(r.Context()).Key()
		locations[key] = post(t, h, "/payments", key).location // a duplicate, while this one is in flight
	}, onceward.Reserved(onceward.FailureUnknown), onceward.InFlightAccepted("/operations/"), onceward.OperationName("pay"))
	router := chi.NewRouter()
	router.Method(http.MethodGet, "/operations/{key}", guard.StatusHandler())
	server := httptest.NewServer(router)
	defer server.Close()
	for _, key := range keys {
		post(t, h, "/payments", key).want(t, "section 6", http.StatusOK, false)
		if locations[key] == "" {
			t.Errorf("section 6: there is no Location for the key %q", key)
			continue
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+locations[key], nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Transport.RoundTrip(request) // no redirects
		if err != nil {
			t.Fatal(err)
		}
		var s onceward.Status
		err = json.NewDecoder(res.Body).Decode(&s)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || err != nil || s.Key != key {
			t.Errorf("section 6: %s shows %d, key %q, %v; want the key %q", locations[key], res.StatusCode, s.Key, err,
				key)
		}
	}
}

// opaque is a middleware's handler that does not say what it wraps.
type opaque struct{ http.Handler }

// routesOf are the routes of chi, with the middlewares in front of them.
func routesOf(router chi.Router) (routes []onceward.RouteInfo, err error) {
	err = chi.Walk(router, func(method, route string, handler http.Handler, before ...func(http.Handler) http.Handler) error {
		routes = append(routes,
			onceward.RouteInfo{Method: method, Pattern: route, Handler: handler, Middlewares: before})
		return nil
	})
	return routes, err
}

func TestAuditOfRoutes(t *testing.T) {
	t.Parallel()
	protect := newGuard(t, memory.New()).Middleware(onceward.Reserved(onceward.FailureUnknown))
	plain := func(http.ResponseWriter, *http.Request) {}
	logging := func(next http.Handler) http.Handler { return opaque{next} }
	router := chi.NewRouter()
	router.Post("/plain", plain)
	router.Get("/read", plain)
	router.With(logging, protect).Post("/with", plain)
	router.Method(http.MethodPost, "/method", protect(http.HandlerFunc(plain)))
	router.Route("/group", func(r chi.Router) {
		r.Use(protect)
		r.Post("/inside", plain)
		r.Patch("/{id}", plain)
	})
	router.Route("/other", func(r chi.Router) {
		r.Use(logging)
		r.Patch("/{id}", plain)
	})
	routes, err := routesOf(router)
	if err != nil {
		t.Fatal(err)
	}
	if len(routes) != 7 {
		t.Errorf("L6: chi shows %d routes, want 7", len(routes))
	}
	var got []string
	for _, route := range onceward.Audit(routes) {
		got = append(got, route.String())
	}
	slices.Sort(got)
	if want := []string{"PATCH /other/{id}", "POST /plain"}; !slices.Equal(got, want) {
		t.Errorf("L6: unprotected are %q, want %q", got, want)
	}
}

// The routes of chi are audited with the middlewares in front of them.
func Example_audit() {
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("at least sixteen random bytes"),
	})
	if err != nil {
		log.Fatal(err)
	}
	create := func(http.ResponseWriter, *http.Request) {}
	router := chi.NewRouter()
	router.With(guard.Middleware(onceward.Reserved(onceward.FailureUnknown))).Post("/payments", create)
	router.Post("/refunds", create)

	var routes []onceward.RouteInfo
	err = chi.Walk(router, func(method, route string, handler http.Handler, before ...func(http.Handler) http.Handler) error {
		routes = append(routes,
			onceward.RouteInfo{Method: method, Pattern: route, Handler: handler, Middlewares: before})
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, route := range onceward.Audit(routes) {
		fmt.Println("not protected:", route)
	}
	// Output:
	// not protected: POST /refunds
}
