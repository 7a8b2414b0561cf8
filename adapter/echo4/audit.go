package oncewardecho4

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/labstack/echo/v4"

	"github.com/onceward/onceward"
)

// Routes records the routes of an echo, because echo itself does not report which middlewares a route has.
type Routes struct{ routes []onceward.RouteInfo }

// Watch records the routes that are registered from now on, for [Routes.Audit]. Call it before the first route is
// registered. It sets router.OnAddRouteHandler, and calls the previous function.
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

// Audit returns an error if a route changes state, and is neither protected nor exempt: see [onceward.AuditStrict].
// Audit does not see middlewares that were added with the router's Use: protect routes and groups. It also gives the
// guards the names of their operations. Call it when all routes are registered.
func (r *Routes) Audit(exempt ...string) error { return onceward.AuditStrict(r.routes, exempt...) }

// add records a route with its protection, if it has one. It skips the route for missing paths that echo adds to each
// group with a middleware, because that route does nothing.
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

// asked is where a middleware of this package stores its protection if it is called without a handler to wrap.
var asked struct {
	sync.Mutex // held by protection
	protected  atomic.Pointer[http.Handler]
}

// protection returns the handler with which a middleware protects, or nil if the middleware is not of this package. It
// calls the middleware without a handler: a middleware of this package then returns nil. A middleware that wraps one of
// this package returns a handler: it may let requests pass, so it does not count.
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
