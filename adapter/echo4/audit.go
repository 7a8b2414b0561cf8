package oncewardecho4

import (
	"net/http"
	"reflect"

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
		r.add(route.Method, host+route.Path, handler, middlewares)
	}
	return r
}

// Audit returns an error if a route changes state, and is neither protected nor exempt: see [onceward.AuditStrict]. A
// middleware of the whole router, by its Use, is not seen: protect routes and groups. Guards learn the names of their
// operations from it. Call it when all routes are registered.
func (r *Routes) Audit(exempt ...string) error { return onceward.AuditStrict(r.routes, exempt...) }

// add notes a route with its protection, if it has one. That for paths that do not exist, which echo adds to each group
// with a middleware, does nothing.
func (r *Routes) add(method, path string, handler echo.HandlerFunc, middlewares []echo.MiddlewareFunc) {
	if method == echo.RouteNotFound {
		return
	}
	route := onceward.RouteInfo{Method: method, Pattern: path}
	if handler != nil && reflect.ValueOf(handler).Pointer() == serving {
		route.Handler = protection(handler)
	}
	for _, m := range middlewares {
		if reflect.ValueOf(m).Pointer() == wrapping {
			route.Handler = protection(m(nil))
		}
	}
	r.routes = append(r.routes, route)
}

// serving and wrapping are the code of all protected handlers, and of all middlewares that protect.
var (
	serving  = reflect.ValueOf((*route)(nil).serve).Pointer()
	wrapping = reflect.ValueOf((*middleware)(nil).wrap).Pointer()
)

// probe is the context with which a protected handler is asked for its protection.
type probe struct {
	echo.Context
	found http.Handler
}

// protection is that of a handler of this package.
func protection(h echo.HandlerFunc) http.Handler {
	var p probe
	_ = h(&p) // it only leaves its protection there
	return p.found
}
