package onceward_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// loggedTo lets the guard write its log into a buffer.
func loggedTo(log *bytes.Buffer) func(*onceward.Config) {
	return func(c *onceward.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }
}

// unrouted removes what a router sets.
func unrouted(r *http.Request) { r.Pattern = "" }

// TestAnOperationWithoutANameIsRefused: in front of a router the pattern is not known, and a path with values in it is
// no name.
func TestAnOperationWithoutANameIsRefused(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	handler, events, s := new(counted), new(journal), memory.New()
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", handler)
	mux.Handle("PATCH /accounts/{id}", handler)
	h := newGuard(t, s, loggedTo(&log), observedBy(events)).Handler(mux, reserved, onceward.KeyOptional())
	for _, method := range []string{http.MethodPost, http.MethodPatch} {
		for i := range 3 {
			a := serve(h, newRequest(method, fmt.Sprint("/accounts/", i), "k", `{}`, unrouted))
			p := a.wantProblem(t, "section 1, operation", http.StatusInternalServerError, "operation-unnamed")
			if p.Retryable {
				t.Error("A1: the next one would be refused too")
			}
		}
	}
	handler.wantRuns(t, "section 1, operation", 0)
	wantNothingStored(t, "section 1, operation", s)
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 ||
		!strings.Contains(log.String(), "onceward.OperationName") {
		t.Errorf("section 1: %d errors in the log, want one with the remedy: %s", n, log.String())
	}
	for _, e := range observed[onceward.RejectedEvent](events) {
		if e.Code != "operation-unnamed" || e.Operation != http.MethodPost && e.Operation != http.MethodPatch {
			t.Errorf("M1: the observer was told %+v", e)
		}
	}
	// What is not protected needs no name.
	serve(h, newRequest(http.MethodPost, "/accounts/1", "", `{}`, unrouted)).want(t, "H5", http.StatusCreated, false)
	handler.wantRuns(t, "H5", 1)
}

func TestManyPathsHaveOneName(t *testing.T) {
	t.Parallel()
	const paths = 300
	s, handler := memory.New(), new(counted)
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/payments", newGuard(t, s).Handler(handler, reserved))
	for i := range paths {
		r := newRequest(http.MethodPost, fmt.Sprintf("/accounts/%d/payments", i), fmt.Sprint("k", i), `{}`)
		serve(mux, r).want(t, "section 1, operation", http.StatusCreated, false)
	}
	names := make(map[string]int)
	records, err := s.List(t.Context(), store.Filter{})
	for i := range records {
		names[records[i].Operation]++
	}
	if err != nil || len(names) != 1 || names["POST /accounts/{id}/payments"] != paths {
		t.Errorf("section 1: the operations are %v, %v; want one for %d paths", names, err, paths)
	}
}

// TestNamesByRouter: the name of a request under routers that change it on its way.
func TestNamesByRouter(t *testing.T) {
	t.Parallel()
	mounted := func(guarded http.Handler) http.Handler {
		inner, outer := http.NewServeMux(), http.NewServeMux()
		inner.Handle("POST /payments/{id}", guarded)
		outer.Handle("/api/", http.StripPrefix("/api", inner))
		return outer
	}
	for name, test := range map[string]struct {
		route  func(guarded http.Handler) http.Handler
		target string
		want   string
	}{
		"a mux within a mux": {mounted, "/api/payments/7", "POST /payments/{id}"},
		"a stripped prefix": {func(guarded http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/api/", http.StripPrefix("/api", guarded))
			return mux
		}, "/api/payments/7", "POST /api/"},
		"the absolute form": {mounted, "http://example.com/api/payments/7", "POST /payments/{id}"},
		"a host": {func(guarded http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST example.com/{rest...}", guarded)
			return mux
		}, "http://example.com/api", "POST example.com/{rest...}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := make(map[string]string)
			h := test.route(newGuard(t, memory.New()).Handler(namer(seen), reserved))
			serve(h, newRequest(http.MethodPost, test.target, "k", `{}`, unrouted)).want(t, name, http.StatusOK, false)
			serve(h, newRequest(http.MethodPost, test.target, "k", `{}`, unrouted)).want(t, name, http.StatusOK, true)
			for _, got := range seen {
				if got != test.want {
					t.Errorf("section 1: the operation is %q, want %q", got, test.want)
				}
			}
		})
	}
}

// TestCONNECTHasNoPattern: its target is an authority, which no route of a mux matches. It needs a name.
func TestCONNECTHasNoPattern(t *testing.T) {
	t.Parallel()
	connect := func() *http.Request {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n")))
		if err != nil {
			t.Fatal(err)
		}
		prepare(r, "k", nil)
		return r
	}
	guard, handler, mux := newGuard(t, memory.New()), new(counted), http.NewServeMux()
	protect := func(options ...onceward.Option) http.Handler {
		return guard.Handler(handler, append(options, reserved, onceward.Methods(http.MethodConnect))...)
	}
	mux.Handle("/", protect())
	if a := serve(mux, connect()); a.status != http.StatusNotFound {
		t.Errorf("section 1: a mux answers CONNECT with %d", a.status)
	}
	serve(protect(), connect()).
		wantProblem(t, "section 1, operation", http.StatusInternalServerError, "operation-unnamed")
	handler.wantRuns(t, "section 1, operation", 0)
	serve(protect(onceward.OperationName("tunnel")), connect()).want(t, "section 1", http.StatusCreated, false)
}

// TestTheMethodCountsUnderAName: one name for two methods does not make them one operation.
func TestTheMethodCountsUnderAName(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.OperationName("pay"))
	serve(h, newRequest(http.MethodPost, "/a", "k", `{}`)).want(t, "F1", http.StatusCreated, false)
	serve(h, newRequest(http.MethodPatch, "/a", "k", `{}`)).
		wantProblem(t, "F1", http.StatusUnprocessableEntity, "mismatch")
	serve(h, newRequest(http.MethodPost, "/a", "k", `{}`)).want(t, "F1", http.StatusCreated, true)
	handler.wantRuns(t, "F1", 1)
}

// TestNamesAreCheckedAgainstRoutes: a rule for an operation that does not exist is found, unless the guard cannot know.
func TestNamesAreCheckedAgainstRoutes(t *testing.T) {
	t.Parallel()
	nop := http.NotFoundHandler()
	onMux := func(g *onceward.Guard) {
		mux := onceward.NewMux()
		mux.Handle("POST /payments", g.Handler(nop, reserved))
		mux.Handle("/accounts/{id}", wrapper{g.Handler(nop, reserved)})
		mux.Handle("PUT /things/{id}", g.Handler(nop, reserved, onceward.Methods(http.MethodPut)))
		mux.Handle("POST /named", g.Handler(nop, reserved, onceward.OperationName("pay")))
		mux.Handle("GET /read", nop)
	}
	for name, test := range map[string]struct {
		routes   func(g *onceward.Guard)
		declared []string
		rules    []string
		says     string // what the error does; empty for none
		warns    string // what the log does
	}{
		"all there": {onMux, nil, []string{
			"POST /payments", "POST /accounts/{id}", "PATCH /accounts/{id}", "PUT /things/{id}", "pay",
		}, "", ""},
		"a misspelt one":           {onMux, nil, []string{"POST /payment"}, `"POST /payment" (the nearest is "POST /payments")`, ""},
		"the pattern under a name": {onMux, nil, []string{"POST /named"}, `"POST /named"`, ""},
		"a method too few":         {onMux, nil, []string{"PUT /accounts/{id}"}, `the nearest is "POST /accounts/{id}"`, ""},
		"nothing like it":          {onMux, nil, []string{"zzz"}, `operation "zzz": correct`, ""},
		"declared":                 {onMux, []string{"nightly job"}, []string{"nightly job"}, "", ""},
		"no routes":                {func(*onceward.Guard) {}, nil, []string{"POST /payments"}, "", `POST /payments`},
		"no rules":                 {func(*onceward.Guard) {}, nil, nil, "", ""},
		"another router": {func(g *onceward.Guard) {
			onMux(g)
			http.NewServeMux().Handle("POST /elsewhere", g.Handler(nop, reserved))
		}, nil, []string{"POST /payments", "POST /elsewhere"}, "", `POST /elsewhere`},
		"another router, audited": {func(g *onceward.Guard) {
			onMux(g)
			onceward.Audit([]onceward.RouteInfo{
				{Method: http.MethodPost, Pattern: "/elsewhere", Handler: g.Handler(nop, reserved)},
				{Method: "*", Pattern: "/all", Handler: g.Handler(nop, reserved)},
			})
		}, nil, []string{"POST /payments", "POST /elsewhere", "PATCH /all", "PATCH /elsewhere"}, `operation "PATCH /elsewhere"`, ""},
		"an audit makes no routes": {func(g *onceward.Guard) {
			onMux(g)
			onceward.Audit([]onceward.RouteInfo{{
				Method: http.MethodPost, Pattern: "/x", Handler: nop,
				Middlewares: []func(http.Handler) http.Handler{g.Middleware(reserved)},
			}})
			g.StatusHandler()
		}, nil, []string{"POST /x"}, `"POST /x"`, ""},
		"an audit of what wraps first": {func(g *onceward.Guard) {
			onMux(g)
			around := func(next http.Handler) http.Handler { return wrapper{g.Handler(opaque{next}, reserved)} }
			for range 2 {
				onceward.Audit([]onceward.RouteInfo{{
					Pattern: "/x", Handler: nop, Middlewares: []func(http.Handler) http.Handler{around},
				}})
			}
		}, nil, []string{"POST /x"}, `"POST /x"`, ""},
		"an audit beside another router": {func(g *onceward.Guard) {
			around := func(next http.Handler) http.Handler { return g.Handler(opaque{next}, reserved) }
			http.NewServeMux().Handle("POST /x", around(nop))
			onceward.Audit([]onceward.RouteInfo{{
				Pattern: "/y", Handler: nop, Middlewares: []func(http.Handler) http.Handler{around},
			}})
		}, nil, []string{"POST /x"}, "", `POST /x`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			guard := newGuard(t, memory.New(), loggedTo(&log), func(c *onceward.Config) { c.Operations = test.declared })
			test.routes(guard)
			err := guard.CheckOperations(test.rules...)
			if test.says == "" && err != nil || test.says != "" && (!errors.Is(err, onceward.ErrMisconfigured) ||
				!strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "Config.Operations")) {
				t.Errorf("section 1: the error is %v, want %q", err, test.says)
			}
			warned := strings.Contains(log.String(), "level=WARN")
			if warned != (test.warns != "") || !strings.Contains(log.String(), test.warns) {
				t.Errorf("section 1: the log says %q, want %q", log.String(), test.warns)
			}
		})
	}
}

// TestManyNames: the memory of them has a limit, past which a name that is not known may be right.
func TestManyNames(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	guard := newGuard(t, memory.New(), loggedTo(&log))
	name := func(i int) string { return fmt.Sprint("pay ", i) }
	for i := range 4096 {
		guard.Handler(http.NotFoundHandler(), reserved, onceward.OperationName(name(i)))
	}
	if err := guard.CheckOperations(name(4096)); !errors.Is(err, onceward.ErrMisconfigured) {
		t.Errorf("section 1: while all names are kept the error is %v", err)
	}
	guard.Handler(http.NotFoundHandler(), reserved, onceward.OperationName(name(4096)))
	if err := guard.CheckOperations(name(0), name(4096)); err != nil {
		t.Errorf("section 1: a name that was not kept is refused: %v", err)
	}
	if !strings.Contains(log.String(), name(4096)) || strings.Contains(log.String(), name(0)+`"`) {
		t.Errorf("section 1: the log says %q, want what was not kept alone", log.String())
	}
}

// TestAllMissingNamesAreTold: one start reports everything that is wrong.
func TestAllMissingNamesAreTold(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	guard.Handler(http.NotFoundHandler(), reserved, onceward.OperationName("pay"))
	err := guard.CheckOperations("b", "a", "pay")
	if err == nil || !strings.Contains(err.Error(), `"a", "b"`) {
		t.Errorf("section 1: %v", err)
	}
}
