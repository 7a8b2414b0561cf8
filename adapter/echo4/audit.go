package oncewardecho4

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/labstack/echo/v4"

	"github.com/onceward/onceward"
)

// Routes are the routes of an echo, which itself does not tell what answers them.
type Routes struct{ routes []onceward.RouteInfo }

// Watch notes the routes that are registered from now on, for [Routes.Audit]. Call it before the first one. It uses
// router.OnAddRouteHandler, and calls what was there before.
func Watch(router *echo.Echo) *Routes {
	r := new(Routes)
	before := router.OnAddRouteHandler
	router.OnAddRouteHandler = func(
		host string, route echo.Route, handler echo.HandlerFunc, middlewares []echo.MiddlewareFunc,
	) {
		if before != nil {
			before(host, route, handler, middlewares)
		}
		r.add(route.Method, host+route.Path, middlewares)
	}
	return r
}

// Audit returns an error if a route changes state, and is neither protected nor exempt: see [onceward.AuditStrict]. A
// middleware of the whole router, by its Use, is not seen: protect routes and groups. Guards learn the names of their
// operations from it. Call it when all routes are registered.
func (r *Routes) Audit(exempt ...string) error { return onceward.AuditStrict(r.routes, exempt...) }

// add notes a route with its protection, if it has one. That for paths that do not exist, which echo adds to each group
// with a middleware, does nothing.
func (r *Routes) add(method, path string, middlewares []echo.MiddlewareFunc) {
	if method == echo.RouteNotFound {
		return
	}
	route := onceward.RouteInfo{Method: method, Pattern: path}
	for _, m := range middlewares {
		if protected := protection(m); protected != nil {
			route.Handler = protected
		}
	}
	r.routes = append(r.routes, route)
}

// asked is where a middleware of this package leaves its protection, if it is given no handler to wrap.
var asked struct {
	sync.Mutex // of the one that asks
	protected  atomic.Pointer[http.Handler]
}

// protection returns what a middleware protects with; nil if it is not of this package. It gives the middleware no
// handler, for which this package's own returns none. A middleware around one of this package returns a handler: it may
// let requests pass, so it does not count.
func protection(m echo.MiddlewareFunc) http.Handler {
	asked.Lock()
	defer asked.Unlock()
	asked.protected.Store(nil)
	wrapped := m(nil)
	if protected := asked.protected.Load(); wrapped == nil && protected != nil {
		return *protected
	}
	return nil
}
