package payments

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/onceward/onceward"
)

// Protector protects routes of echo, and remembers them.
type Protector map[string]http.Handler

type contextKey struct{} // under which the guard's request carries echo's context

// Handle serves a route inside of the guard. The answer to an error is made there too, so that it is stored.
// What is given as add is a method of an *echo.Echo or an *echo.Group.
func (p Protector) Handle(
	add func(string, string, echo.HandlerFunc, ...echo.MiddlewareFunc) echo.RouteInfo,
	method, path string, next echo.HandlerFunc, guard *onceward.Guard, options ...onceward.Option,
) {
	var name string
	route := add(method, path, func(c *echo.Context) error {
		defer c.SetRequest(c.Request())
		defer c.SetResponse(c.Response())
		r := c.Request().WithContext(context.WithValue(c.Request().Context(), contextKey{}, c))
		p[name].ServeHTTP(c.Response(), r)
		return nil
	})
	name = method + " " + route.Path
	p[name] = guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(contextKey{}).(*echo.Context)
		c.SetRequest(r)
		c.SetResponse(echo.NewResponse(w, c.Echo().Logger))
		if err := next(c); err != nil {
			c.Echo().HTTPErrorHandler(c, err)
		}
	}, append(options, onceward.OperationName(name))...)
}

// Audit returns an error if a route changes state and is neither protected nor exempt.
func (p Protector) Audit(router *echo.Echo, exempt ...string) error {
	var routes []onceward.RouteInfo
	for _, r := range router.Router().Routes() {
		routes = append(routes, onceward.RouteInfo{Method: r.Method, Pattern: r.Path, Handler: p[r.Method+" "+r.Path]})
	}
	return onceward.AuditStrict(routes, exempt...)
}
