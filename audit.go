package onceward

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// RouteInfo describes one route of a router, for [Audit].
type RouteInfo struct {
	// Method is the method that the route answers; empty for all.
	Method string
	// Pattern is the path pattern, as the router writes it into http.Request.Pattern.
	Pattern string
	// Handler serves the route. It counts as protected if it was made by [Guard.Handler], [Guard.HandlerFunc] or
	// [Guard.Middleware], or unwraps to such a handler by a method Unwrap() http.Handler.
	Handler http.Handler
	// Middlewares are the middlewares that the router puts in front of Handler. The route also counts as protected if
	// one of them protects it.
	Middlewares []func(http.Handler) http.Handler
}

// String returns the route as a pattern of http.ServeMux.
func (r RouteInfo) String() string {
	return strings.TrimSpace(r.Method + " " + r.Pattern)
}

// Audit returns the routes that change state and are not protected (rule L6): routes for POST and PATCH, routes for
// every method, and routes whose guard does not cover their method, such as a PUT without [Methods]. Routes in exempt,
// written as String writes them, are left out: list the routes there that need no protection.
//
// Audit also registers each protected route with its guard, which needs the names of its operations for
// [Guard.CheckOperations].
func Audit(routes []RouteInfo, exempt ...string) []RouteInfo {
	var unprotected []RouteInfo
	for _, route := range routes {
		route.place()
		if slices.Contains(exempt, route.String()) {
			continue
		}
		if route.changesState() && !route.protected() || route.guardedInVain() {
			unprotected = append(unprotected, route)
		}
	}
	return unprotected
}

// AuditStrict returns an error that names every route that [Audit] finds, for a program that must not start with an
// unprotected route.
func AuditStrict(routes []RouteInfo, exempt ...string) error {
	unprotected := Audit(routes, exempt...)
	if len(unprotected) == 0 {
		return nil
	}
	names := make([]string, len(unprotected))
	for i, route := range unprotected {
		names[i] = route.String()
	}
	what, them := "1 route changes state and is", "it"
	if len(names) > 1 {
		what, them = fmt.Sprintf("%d routes change state and are", len(names)), "them"
	}
	return fmt.Errorf("onceward: %s not protected: %s: protect %s with Guard.Handler, or exempt %s by name",
		what, strings.Join(names, ", "), them, them)
}

// place registers the method and pattern of a protected route with its guard.
func (r RouteInfo) place() {
	p := guardOf(r.Handler)
	if p == nil {
		return
	}
	method := r.Method
	if r.everyMethod() {
		method = ""
	}
	p.guard.names.placeRoute(p, method, r.Pattern)
}

// stateChanging lists the methods that need protection.
var stateChanging = []string{http.MethodPost, http.MethodPatch}

// everyMethod reports whether a route answers all methods.
func (r RouteInfo) everyMethod() bool { return r.Method == "" || r.Method == "*" }

func (r RouteInfo) changesState() bool {
	return r.everyMethod() || slices.Contains(stateChanging, r.Method)
}

// safe lists the methods that change nothing, including the methods that routers add to routes of all methods. CONNECT
// opens a tunnel, which cannot be replayed.
var safe = []string{
	http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect,
	"PROPFIND", "QUERY", "REPORT", "SEARCH",
}

// guardedInVain reports whether the route has a guard that does not cover the route's only method.
func (r RouteInfo) guardedInVain() bool {
	return !r.everyMethod() && !slices.Contains(safe, r.Method) && isGuarded(r.Handler) && !r.protects(r.Method)
}

// protected reports whether each state-changing method of the route is protected.
func (r RouteInfo) protected() bool {
	for _, method := range stateChanging {
		if (r.everyMethod() || r.Method == method) && !r.protects(method) {
			return false
		}
	}
	return true
}

func (r RouteInfo) protects(method string) bool {
	if protects(r.Handler, method) {
		return true
	}
	for _, middleware := range r.Middlewares {
		built := middleware(probe{http.NotFoundHandler()})
		if p := guardOf(built); p != nil {
			p.guard.names.dropRoute(p)
		}
		if protects(built, method) {
			return true
		}
	}
	return false
}

// probe marks a handler that is wrapped only to find out whether a middleware protects it. It is not a route.
type probe struct{ http.Handler }

func protects(h http.Handler, method string) bool {
	guard := guardOf(h)
	return guard != nil && slices.Contains(guard.settings.methods, method)
}

func isGuarded(h http.Handler) bool { return guardOf(h) != nil }

// guardOf returns the guard's handler in a chain of handlers that unwrap, or nil.
func guardOf(h http.Handler) *protected {
	for h != nil {
		if p, ok := h.(*protected); ok {
			return p
		}
		wrapper, ok := h.(interface{ Unwrap() http.Handler })
		if !ok {
			return nil
		}
		h = wrapper.Unwrap()
	}
	return nil
}

// Mux is an [http.ServeMux] that remembers its routes for [Audit], and registers the names of the protected operations
// with their guards for [Guard.CheckOperations].
type Mux struct {
	http.ServeMux
	routes []RouteInfo
}

// NewMux returns an empty mux.
func NewMux() *Mux { return new(Mux) }

// Handle registers a handler, as [http.ServeMux.Handle] does.
func (m *Mux) Handle(pattern string, handler http.Handler) {
	m.ServeMux.Handle(pattern, handler)
	route := RouteInfo{Pattern: pattern, Handler: handler}
	if method, path, found := strings.Cut(pattern, " "); found {
		route.Method, route.Pattern = method, strings.TrimLeft(path, " \t")
	}
	m.routes = append(m.routes, route)
	if p := guardOf(handler); p != nil {
		p.guard.names.placeRoute(p, route.Method, pattern)
	}
}

// HandleFunc registers a function, as [http.ServeMux.HandleFunc] does.
func (m *Mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, http.HandlerFunc(handler))
}

// Routes returns the routes in the order in which they were added.
func (m *Mux) Routes() []RouteInfo { return slices.Clone(m.routes) }
