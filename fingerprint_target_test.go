package onceward_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// This file is about where a request was sent to: two routes never look like one, and one route does not look like
// two, whatever the form of the target and whatever a router does to it (scenario 49).

// routers mount one protected handler at /a/… and at /b/….
var routers = map[string]func(guard *onceward.Guard, handler http.Handler) http.Handler{
	"muxes behind StripPrefix": func(guard *onceward.Guard, handler http.Handler) http.Handler {
		outer := http.NewServeMux()
		for _, prefix := range []string{"/a", "/b"} {
			inner := http.NewServeMux()
			inner.Handle("POST /{rest...}", guard.Handler(handler, reserved))
			outer.Handle(prefix+"/", http.StripPrefix(prefix, inner))
		}
		return outer
	},
	"one name behind StripPrefix": func(guard *onceward.Guard, handler http.Handler) http.Handler {
		pay := guard.Handler(handler, reserved, onceward.OperationName("pay"))
		a, b := http.StripPrefix("/a", pay), http.StripPrefix("/b", pay)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/a/") {
				a.ServeHTTP(w, r)
			} else {
				b.ServeHTTP(w, r)
			}
		})
	},
	"in front of the router": func(guard *onceward.Guard, handler http.Handler) http.Handler {
		return guard.Handler(handler, reserved, onceward.OperationName("pay"))
	},
}

// forms are those in which a target reaches the guard.
var forms = map[string]func(t *testing.T, h http.Handler) func(key, path string) answer{
	"origin-form": func(t *testing.T, h http.Handler) func(key, path string) answer {
		server := startServer(t, h)
		return func(key, path string) answer { return sendTo(t, server.Client(), server.URL+path, key) }
	},
	"absolute-form": func(t *testing.T, h http.Handler) func(key, path string) answer {
		server := startServer(t, asserting(t, "http://", h))
		proxy, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{Proxy: http.ProxyURL(proxy)}
		t.Cleanup(transport.CloseIdleConnections)
		return func(key, path string) answer {
			return sendTo(t, &http.Client{Transport: transport}, "http://api.example.com"+path, key)
		}
	},
	"HTTP/2": func(t *testing.T, h http.Handler) func(key, path string) answer {
		server := startHTTP2(t, h)
		return func(key, path string) answer { return sendTo(t, server.Client(), server.URL+path, key) }
	},
	"CGI, kept in front": func(t *testing.T, h http.Handler) func(key, path string) answer {
		kept := onceward.KeepTarget(h)
		return func(key, path string) answer { return serve(kept, byCGI(t, path, key)) }
	},
	"none, kept in front": func(_ *testing.T, h http.Handler) func(key, path string) answer {
		kept := onceward.KeepTarget(h)
		return func(key, path string) answer { return serve(kept, withoutTarget(path, key)) }
	},
}

// withoutTarget is a request as an adapter makes it that leaves RequestURI empty.
func withoutTarget(path, key string) *http.Request {
	return newRequest(http.MethodPost, path, key, `{}`, func(r *http.Request) { r.RequestURI = "" })
}

// byCGI is a request as net/http/cgi and net/http/fcgi make it.
func byCGI(t *testing.T, path, key string) *http.Request {
	t.Helper()
	r, err := cgi.RequestFromMap(map[string]string{
		"REQUEST_METHOD": http.MethodPost, "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "api.example.com", "REQUEST_URI": path,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.RequestURI != "" {
		t.Errorf("net/http/cgi sets RequestURI to %q: KeepTarget need not name it", r.RequestURI)
	}
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(`{}`)), 2
	prepare(r, key, nil)
	return r
}

// asserting makes sure that targets come in the form that the test is about.
func asserting(t *testing.T, prefix string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.RequestURI, prefix) {
			t.Errorf("the target is %q, want one that starts with %q", r.RequestURI, prefix)
		}
		next.ServeHTTP(w, r)
	})
}

// startHTTP2 serves HTTP/2 alone on loopback until the test ends.
func startHTTP2(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came by %s, want HTTP/2", r.Proto)
		}
		routed(h).ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func sendTo(t testing.TB, client *http.Client, target, key string, edits ...edit) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	prepare(r, key, edits)
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: res.StatusCode, header: res.Header, trailer: res.Trailer, body: string(body)}
}

func TestTargetsOfAllForms(t *testing.T) {
	t.Parallel()
	for router, mount := range routers {
		t.Run(router, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := mount(newGuard(t, memory.New()), handler)
			to := make(map[string]func(key, path string) answer, len(forms))
			for form, start := range forms {
				to[form] = start(t, h)
			}
			runs := int64(0)
			for first := range forms {
				for second := range forms {
					key := strings.NewReplacer(",", "", " ", "-").Replace(first + "-then-" + second)
					to[first](key, "/a/pay").want(t, first, http.StatusCreated, false)
					to[second](key, "/a/pay?").want(t, "F1: "+key, http.StatusCreated, true)
					for _, other := range []string{"/b/pay", "/a/pay/", "/a/pay%2F", "/a/pay?x=1"} {
						to[second](key, other).
							wantProblem(t, "F1: "+key+", "+other, http.StatusUnprocessableEntity, "mismatch")
					}
					to[first](key+"-escaped", "/a/x%2Fy").want(t, first, http.StatusCreated, false)
					to[second](key+"-escaped", "/a/x%2Fy").want(t, "F1: "+key, http.StatusCreated, true)
					to[second](key+"-escaped", "/a/x/y").
						wantProblem(t, "F1: "+key, http.StatusUnprocessableEntity, "mismatch")
					runs += 2
				}
			}
			handler.wantRuns(t, "F1", runs)
		})
	}
}

// TestARequestWithoutATarget: a request as http.NewRequest makes it is the same as one that came by a server.
func TestARequestWithoutATarget(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.OperationName("pay"))
	serve(h, withoutTarget("/a/pay?x=1", "k")).want(t, "F1", http.StatusCreated, false)
	serve(h, newRequest(http.MethodPost, "/a/pay?x=1", "k", `{}`)).want(t, "F1", http.StatusCreated, true)
	for _, other := range []string{"/a/pay", "/b/pay?x=1"} {
		serve(h, withoutTarget(other, "k")).wantProblem(t, "F1: "+other, http.StatusUnprocessableEntity, "mismatch")
	}
	handler.wantRuns(t, "F1", 1)
}

func TestTargetsWithoutAPath(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler,
		reserved, onceward.OperationName("pay"))
	to := func(key, uri string) answer {
		return serve(h, newRequest(http.MethodPost, "/", key, `{}`, func(r *http.Request) { r.RequestURI = uri }))
	}
	to("root", "/").want(t, "F1", http.StatusCreated, false)
	to("root", "http://example.com").want(t, "F1: an empty path is the root", http.StatusCreated, true)
	to("root", "http://example.com?").want(t, "F1: an empty path is the root", http.StatusCreated, true)
	to("root", "HTTPS://user@example.com:8080/").want(t, "F1: sent through a proxy", http.StatusCreated, true)
	to("root", "*").wantProblem(t, "F1: the server as a whole", http.StatusUnprocessableEntity, "mismatch")
	to("root", "example.com:443").wantProblem(t, "F1: an authority", http.StatusUnprocessableEntity, "mismatch")
	to("authority", "a.example.com:443").want(t, "F1", http.StatusCreated, false)
	to("authority", "b.example.com:443").
		wantProblem(t, "F1: another authority", http.StatusUnprocessableEntity, "mismatch")
	to("path", "/x://y/pay").want(t, "F1", http.StatusCreated, false)
	to("path", "/pay").wantProblem(t, "F1: a path is no scheme", http.StatusUnprocessableEntity, "mismatch")
}

// TestTheMethodCounts: a name stands for the operation, by which it is found, and not for its method.
func TestTheMethodCounts(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, reserved, onceward.OperationName("pay"),
		onceward.Methods(http.MethodPost, http.MethodPatch, http.MethodDelete))
	by := func(method string) answer { return serve(h, newRequest(method, "/payments", "k", `{}`)) }
	by(http.MethodPost).want(t, "F1", http.StatusCreated, false)
	for _, method := range []string{http.MethodPatch, http.MethodDelete} {
		by(method).wantProblem(t, "F1: another method", http.StatusUnprocessableEntity, "mismatch")
	}
	by(http.MethodPost).want(t, "F1", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 1)
	if got := recordOf(t, store, "k").Operation; got != "pay" {
		t.Errorf("section 1: the record's operation is %q, want the name by which it is found", got)
	}
}

// TestRecordsOfOtherRules: records whose fingerprints were made by other rules are neither replayed nor executed again.
func TestRecordsOfOtherRules(t *testing.T) {
	t.Parallel()
	s, handler := memory.New(), new(counted)
	h := newGuard(t, s).Handler(handler, reserved)
	post(h, "now", `{}`).want(t, "F1", http.StatusCreated, false)
	other := recordOf(t, s, "now").Fingerprint
	other.Rules++
	ctx := context.Background()
	v, err := s.Reserve(ctx, &store.Reservation{
		ID: aliceID("before"), Fingerprints: []store.Fingerprint{other}, Nonce: store.Nonce{1},
		Lease: shortLease, Retention: shortLease,
	})
	if err != nil {
		t.Fatal(err)
	}
	claim := store.Claim{ID: aliceID("before"), Attempt: v.Record.Attempt}
	if _, err := s.Complete(ctx, claim, &store.Completion{Response: store.Response{Status: 200}}); err != nil {
		t.Fatal(err)
	}
	post(h, "before", `{}`).wantProblem(t, "D6", http.StatusInternalServerError, "record-unreadable")
	handler.wantRuns(t, "D6", 1)
}

// This file is about what happens to a request on its way to the guard, and must not make two requests look the same.

func TestMountsUnderPrefixesAreDifferentRoutes(t *testing.T) {
	t.Parallel()
	guard, handler := newGuard(t, memory.New()), new(counted)
	mount := func() http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /create", guard.Handler(handler, reserved))
		return mux
	}
	mux := http.NewServeMux()
	mux.Handle("/cards/", http.StripPrefix("/cards", mount()))
	mux.Handle("/banks/", http.StripPrefix("/banks", mount()))
	to := func(target string) answer { return serve(mux, newRequest(http.MethodPost, target, "k", `{}`)) }
	to("/cards/create").want(t, "F1", http.StatusCreated, false)
	to("/banks/create").wantProblem(t, "F1: another route", http.StatusUnprocessableEntity, "mismatch")
	to("/cards/create?").want(t, "F1: the same", http.StatusCreated, true)
	to("/cards/create?to=bank").wantProblem(t, "F1: another query", http.StatusUnprocessableEntity, "mismatch")
	handler.wantRuns(t, "F1", 1)
}

const formType = "application/x-www-form-urlencoded"

func parseForm(r *http.Request) error { return r.ParseForm() }

func parseMultipart(r *http.Request) error { return r.ParseMultipartForm(1 << 20) }

// reading lets a middleware read the request before the next handler does.
func reading(t *testing.T, read func(*http.Request) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := read(r); err != nil {
			t.Error(err)
		}
		next.ServeHTTP(w, r)
	})
}

func TestABodyThatWasReadInFrontOfTheGuard(t *testing.T) {
	t.Parallel()
	parts := multipartBody("boundary", "1")
	drain := func(r *http.Request) error {
		for buffer := make([]byte, 64); ; {
			if _, err := r.Body.Read(buffer); err != nil {
				return nil // its end
			}
		}
	}
	replace := func(r *http.Request) error {
		r.Body = http.NoBody
		return nil
	}
	for name, test := range map[string]struct {
		read        func(*http.Request) error
		body, media string
		edits       []edit
	}{
		"a form, announced":           {parseForm, "amount=1", formType, nil},
		"a form, in chunks":           {parseForm, "amount=1", formType, []edit{chunked("amount=1")}},
		"multipart, announced":        {parseMultipart, parts.body, parts.media, nil},
		"multipart, in chunks":        {parseMultipart, parts.body, parts.media, []edit{chunked(parts.body)}},
		"something else, announced":   {drain, `{"amount":1}`, "application/json", nil},
		"a form, drained by its read": {drain, "amount=1", formType, nil},
		"replaced by nothing":         {replace, `{"amount":1}`, "application/json", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, handler, events := memory.New(), new(counted), new(journal)
			h := newGuard(t, store, observedBy(events)).Handler(handler, reserved)
			server := startServer(t, reading(t, test.read, h))
			a := send(t, server, "k", test.body,
				append([]edit{withHeader("Content-Type", test.media)}, test.edits...)...)
			if p := a.wantProblem(t, "F1: two amounts would look the same", http.StatusInternalServerError,
				"body-consumed"); p.Retryable {
				t.Error("A1: the same request will meet the same middleware")
			}
			handler.wantRuns(t, "F1", 0)
			wantNothingStored(t, "F1", store)
			if rejected := observed[onceward.RejectedEvent](events); len(rejected) != 1 ||
				rejected[0].Code != "body-consumed" {
				t.Errorf("M1: rejections seen: %+v", rejected)
			}
		})
	}
}

// TestRequestsWhoseBodyWasNotRead: a middleware that parses forms leaves everything else alone, and an empty body is
// whole.
func TestRequestsWhoseBodyWasNotRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body, media string
		edits       []edit
	}{
		"JSON":                     {`{"amount":1}`, "application/json", nil},
		"JSON, in chunks":          {`{"amount":1}`, "application/json", []edit{chunked(`{"amount":1}`)}},
		"no body":                  {"", "application/json", nil},
		"nothing, in chunks":       {"", "application/json", []edit{chunked("")}},
		"an empty form":            {"", formType, nil},
		"an empty form, in chunks": {"", formType, []edit{chunked("")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := new(counted)
			h := newGuard(t, memory.New()).Handler(handler, reserved)
			server := startServer(t, reading(t, parseForm, h))
			edits := append([]edit{withHeader("Content-Type", test.media)}, test.edits...)
			send(t, server, "k", test.body, edits...).want(t, "F5", http.StatusCreated, false)
			handler.wantRuns(t, "F5", 1)
		})
	}
}
