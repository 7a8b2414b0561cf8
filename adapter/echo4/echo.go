// Package oncewardecho4 protects handlers of echo v4:
//
//	router.POST("/accounts/:account/payments", createPayment, oncewardecho4.Middleware(guard, onceward.Transactional()))
//
// In the handler, c.Request().Context() has the transaction. [Watch] and [Routes.Audit] fail at startup if a route is
// not protected, and [FromRequest] gives a scope function access to the values that authentication in echo has set.
// docs/routers.md links to a complete program.
//
// If a handler returns an error, the router's own HTTPErrorHandler answers it inside the guard, so that the answer is
// stored like any other.
package oncewardecho4

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/onceward/onceward"
)

// Middleware returns a middleware that protects a route, or the routes of a group. The name of the operation is the
// method and the path of the route, such as "POST /accounts/:account/payments", with the host if the route was
// registered by [echo.Echo.Host]. Middleware panics if the options are invalid, as [onceward.Guard.Middleware] does.
//
// The wrapped handler finds the transaction and the operation in c.Request().Context(). It runs again if the database
// undid its transaction. The path, parameters and values of c are then reset. If the application has its own context
// type, values that c.Set has stored remain. If the handler returns an error, the request fails like a 5xx, unless the
// error is answered with a status of 400 or more. Errors are answered inside the guard. Only an error that is returned
// after the answer has begun is passed to the earlier middlewares.
func Middleware(guard *onceward.Guard, options ...onceward.Option) echo.MiddlewareFunc {
	m := &middleware{protected: guard.HandlerFunc(run, options...)}
	return m.wrap
}

// FromRequest returns echo's context of a request that the guard received. It is for a [onceward.ScopeFunc] that needs
// values that a middleware has set in that context. The context may be used until the request is answered.
func FromRequest(r *http.Request) (echo.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.echo, true
}

// middleware is the protection of a route or a group.
type middleware struct{ protected http.Handler }

// wrap returns next with protection. echo calls it for each request. Without next, it stores the protection for an
// audit: see [protection].
func (m *middleware) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	if next == nil {
		asked.protected.Store(&m.protected)
		return nil
	}
	return func(c echo.Context) error { return m.serve(c, next) }
}

// exchange is a request that passes through the guard. It is part of the request's context.
type exchange struct {
	context.Context
	front
	next echo.HandlerFunc
	// request is the request that the guard receives.
	request http.Request
	// path, names and values are the values of the route before the first run.
	path          string
	names, values []string
	// kept wraps the handler's context, if that context has echo's own type.
	kept  keeping
	first echo.Response
	ran   bool
	err   error // the error for echo: without protection, or after the answer has begun
}

type exchangeKey struct{}

// Value implements [context.Context].
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serve is the handler that echo calls.
func (m *middleware) serve(c echo.Context, next echo.HandlerFunc) error {
	request, response := c.Request(), c.Response()
	defer func() {
		c.SetRequest(request)
		c.SetResponse(response)
	}()
	x := &exchange{Context: request.Context(), front: front{echo: c, response: response}, next: next}
	x.request = *request.WithContext(x)
	x.request.Pattern = pattern(c)
	m.protected.ServeHTTP(&x.front, &x.request)
	return x.err
}

// pattern returns the path of the route. If the route belongs to a host, the host comes first, as in patterns of
// [http.ServeMux].
func pattern(c echo.Context) string {
	host := c.Request().Host
	if _, its := c.Echo().Routers()[host]; its {
		return host + c.Path()
	}
	return c.Path()
}

// run is the handler that the guard calls. The guard calls it again if the database undid the transaction.
func run(w http.ResponseWriter, r *http.Request) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	c := x.echo
	if w == http.ResponseWriter(&x.front) { // the request runs without protection
		x.err = x.next(c)
		return
	}
	c.SetRequest(r)
	c.SetResponse(x.answerTo(w))
	if reflect.TypeOf(c) == plain {
		x.kept.Context = c
		c = &x.kept
	}
	x.err = x.next(c)
	if x.err != nil {
		x.failed(r.Context())
	}
}

// failed answers an error of the handler as echo does, and records it. An error that was returned after the answer had
// begun is passed to the earlier middlewares, as without protection.
func (x *exchange) failed(ctx context.Context) {
	err := x.err
	if !x.echo.Response().Committed {
		x.err = nil
		x.echo.Error(err)
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// answerTo returns an echo response around the guard's writer. Before a later run it restores the path and the
// parameters and the values of the context, so that a run that was undone does not affect the next one.
func (x *exchange) answerTo(w http.ResponseWriter) *echo.Response {
	response := echo.NewResponse(w, x.echo.Echo())
	response.Status = http.StatusOK // echo's initial value
	if x.ran {
		x.kept.restore()
		x.echo.SetPath(x.path)
		x.echo.SetParamNames(x.names...)
		x.echo.SetParamValues(x.values...)
		return response
	}
	x.path, x.names, x.values = x.echo.Path(), x.echo.ParamNames(), slices.Clone(x.echo.ParamValues())
	x.ran, x.first = true, *response
	return &x.first
}
