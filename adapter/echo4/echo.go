// Package oncewardecho4 protects handlers of echo v4:
//
//	router.POST("/accounts/:account/payments", createPayment, oncewardecho4.Middleware(guard, onceward.Transactional()))
//
// In the handler, c.Request().Context() has the transaction. [Watch] and [Routes.Audit] fail a start with routes that
// were forgotten, and [FromRequest] gives a scope function what an authentication in echo has set. docs/routers.md links
// to a whole program.
//
// The answer to an error that a handler returns is made inside of the guard, by the router's own HTTPErrorHandler, so
// that it is stored like any other.
package oncewardecho4

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/onceward/onceward"
)

// Middleware returns a middleware that protects a route, or those of a group. The operation is named by the method and
// the path of the route, such as "POST /accounts/:account/payments", with its host if it was registered by
// [echo.Echo.Host]. It panics if the options cannot be right, as [onceward.Guard.Middleware] does.
//
// What it wraps finds the transaction and the operation in c.Request().Context(). It runs again if the database undid
// its transaction. Path, parameters and values of c are then as they were; in an application with a context type of its
// own, what c.Set has kept is still there. An error that the handler returns fails the request like a 5xx, unless it is
// answered with 400 or more. It is answered inside of the guard; only an error that is returned after the answer has
// begun continues to the middlewares in front.
func Middleware(guard *onceward.Guard, options ...onceward.Option) echo.MiddlewareFunc {
	m := &middleware{protected: guard.HandlerFunc(run, options...)}
	return m.wrap
}

// FromRequest returns echo's context of a request that the guard was given, for a [onceward.ScopeFunc] that needs what
// a middleware has set there. It may be used as long as the request is served.
func FromRequest(r *http.Request) (echo.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.echo, true
}

// middleware is a protection.
type middleware struct{ protected http.Handler }

// wrap returns next with protection. echo calls it at each request. Without a next, an audit asks for the protection: see [protection].
func (m *middleware) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	if next == nil {
		asked.protected.Store(&m.protected)
		return nil
	}
	return func(c echo.Context) error { return m.serve(c, next) }
}

// exchange is a request on its way through the guard, in whose context it travels.
type exchange struct {
	context.Context
	front
	next echo.HandlerFunc
	// request is the guard's.
	request http.Request
	// path, names and values belong to the route.
	path          string
	names, values []string
	// kept is the handler's context, where that is echo's own.
	kept keeping
	// first is the response of the first run.
	first echo.Response
	ran   bool
	err   error // that echo is to see: of a request without protection, or after the answer had begun
}

type exchangeKey struct{}

// Value implements [context.Context].
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serve is what echo calls.
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

// pattern is the path of the route, behind its host if it belongs to one, as in patterns of [http.ServeMux].
func pattern(c echo.Context) string {
	host := c.Request().Host
	if _, its := c.Echo().Routers()[host]; its {
		return host + c.Path()
	}
	return c.Path()
}

// run is what the guard calls: again, if the database undid the transaction.
func run(w http.ResponseWriter, r *http.Request) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	c := x.echo
	if w == http.ResponseWriter(&x.front) { // the request runs without protection, and is echo's own
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
// begun continues to what is in front, as without protection.
func (x *exchange) failed(ctx context.Context) {
	err := x.err
	if !x.echo.Response().Committed {
		x.err = nil
		x.echo.Error(err)
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// answerTo is echo's kind of writer around that of the guard. What a run that was undone has left behind must not reach
// into the next one.
func (x *exchange) answerTo(w http.ResponseWriter) *echo.Response {
	response := echo.NewResponse(w, x.echo.Echo())
	response.Status = http.StatusOK // as echo begins
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
