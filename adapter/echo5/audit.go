package oncewardecho5

import (
	"net/http"
	"reflect"

	"github.com/labstack/echo/v5"

	"github.com/onceward/onceward"
)

// Routes are the routes of an echo, which itself does not tell what answers them.
type Routes struct{ routes []onceward.RouteInfo }

// Watch notes the routes that are registered from now on, for [Routes.Audit]. Call it before the first one. It uses
// router.OnAddRoute, and calls what was there before.
func Watch(router *echo.Echo) *Routes {
	r := new(Routes)
	before := router.OnAddRoute
	router.OnAddRoute = func(route echo.Route) error {
		if before != nil {
			if err := before(route); err != nil {
				return err
			}
		}
		r.add(route.Method, route.Path, route.Handler, route.Middlewares)
		return nil
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
	if method == echo.RouteAny {
		method = "" // all of them
	}
	route := onceward.RouteInfo{Method: method, Pattern: path, Handler: protection(handler)}
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

// probed is where a protected handler leaves its protection, if it is called without a request.
const probed = "github.com/onceward/onceward/adapter/echo5"

// protection is that of a handler; nil if it has none.
func protection(h echo.HandlerFunc) http.Handler {
	if h == nil || reflect.ValueOf(h).Pointer() != serving {
		return nil
	}
	var c echo.Context
	_ = h(&c) // it only leaves its protection there
	return c.Get(probed).(http.Handler)
}
