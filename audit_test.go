package onceward_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

func names(routes []onceward.RouteInfo) (names []string) {
	for _, route := range routes {
		names = append(names, route.String())
	}
	return names
}

// wrapper is a middleware's handler that unwraps.
type wrapper struct{ http.Handler }

func (w wrapper) Unwrap() http.Handler { return w.Handler }

// opaque is one that does not.
type opaque struct{ http.Handler }

func TestAuditOfAMux(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, memory.New())
	protect := guard.Middleware(reserved)
	plain := http.NotFoundHandler()
	mux := onceward.NewMux()
	mux.Handle("POST /protected", protect(plain))
	mux.Handle("POST /plain", plain)
	mux.Handle("PATCH  /patched", plain)
	mux.Handle("POST example.com/host", plain)
	mux.Handle("/any", plain)
	mux.Handle("/any/protected", protect(plain))
	mux.Handle("GET /read", plain)
	mux.Handle("PUT /put", plain)
	mux.Handle("DELETE /gone", plain)
	mux.Handle("PUT /in-vain", protect(plain))
	mux.Handle("GET /also-read", protect(plain))
	mux.Handle("PUT /covered", guard.Handler(plain, reserved, onceward.Methods(http.MethodPut)))
	mux.HandleFunc("POST /func", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("POST /wrapped", wrapper{wrapper{protect(plain)}})
	mux.Handle("POST /opaque", opaque{protect(plain)})
	mux.Handle("POST /exempt", plain)
	mux.Handle("POST /put-only", guard.Handler(plain, reserved, onceward.Methods(http.MethodPut)))
	mux.Handle("/post-only", guard.Handler(plain, reserved, onceward.Methods(http.MethodPost)))
	mux.Handle("POST /post-alone", guard.Handler(plain, reserved, onceward.Methods(http.MethodPost)))

	want := []string{
		"POST /plain", "PATCH /patched", "POST example.com/host", "/any", "PUT /in-vain", "POST /func", "POST /opaque", "POST /put-only", "/post-only",
	}
	if got := names(onceward.Audit(mux.Routes(), "POST /exempt")); !slices.Equal(got, want) {
		t.Errorf("L6: unprotected are %q, want %q", got, want)
	}
	err := onceward.AuditStrict(mux.Routes(), "POST /exempt")
	if err == nil {
		t.Fatal("L6: the strict audit lets the program start")
	}
	for _, name := range want {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("L6: the error does not name %s: %v", name, err)
		}
	}
	if err := onceward.AuditStrict(mux.Routes(), append(want, "POST /exempt")...); err != nil {
		t.Errorf("L6: all are exempt, but: %v", err)
	}
	if err := onceward.AuditStrict(nil); err != nil {
		t.Errorf("L6: no routes: %v", err)
	}
	if a := serve(mux, newRequest(http.MethodPost, "/protected", "", "")); a.status != http.StatusBadRequest {
		t.Errorf("L6: the mux does not serve its routes: %d", a.status)
	}
}

// TestAuditOfAllMethods: routers that list a route of all methods once for each ask for no guard where it is in vain.
func TestAuditOfAllMethods(t *testing.T) {
	t.Parallel()
	methods := onceward.Methods(http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete)
	handler := newGuard(t, memory.New()).Handler(http.NotFoundHandler(), reserved, methods)
	var routes []onceward.RouteInfo
	for _, method := range []string{
		"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "POST", "PATCH", "PUT", "DELETE", // gin and fiber
		"PROPFIND", "REPORT", // echo
		"QUERY", "SEARCH",
	} {
		routes = append(routes, onceward.RouteInfo{Method: method, Pattern: "/any", Handler: handler})
	}
	if err := onceward.AuditStrict(routes); err != nil {
		t.Error(err)
	}
}
