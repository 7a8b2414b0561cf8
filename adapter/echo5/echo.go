// Package oncewardecho5 protects handlers of echo v5:
//
//	router.POST("/accounts/:account/payments", createPayment, oncewardecho5.Middleware(guard, onceward.Transactional()))
//
// In the handler, c.Request().Context() has the transaction. [Watch] and [Routes.Audit] fail a start with routes that
// were forgotten, and [FromRequest] gives a scope function what an authentication in echo has set. docs/routers.md links
// to a whole program.
//
// The answer to an error that a handler returns is made inside of the guard, by the router's own HTTPErrorHandler, so
// that it is stored like any other.
package oncewardecho5

import (
	"context"
	"net/http"
	"slices"

	"github.com/labstack/echo/v5"

	"github.com/onceward/onceward"
)

// Middleware returns a middleware that protects a route, or those of a group. The operation is named by the method and
// the path of the route, such as "POST /accounts/:account/payments". It panics if the options cannot be right, as
// [onceward.Guard.Middleware] does.
//
// What it wraps finds the transaction and the operation in c.Request().Context(). It runs again if the database undid
// its transaction. Path and parameters of c are then as they were; what c.Set has kept is still there, because echo does
// not list it: a handler must not skip a write for a value that it has set. An error that the handler returns fails the
// request like a 5xx, unless it is answered with 400 or more. It is answered inside of the guard; only an error that is
// returned after the answer has begun continues to the middlewares in front.
func Middleware(guard *onceward.Guard, options ...onceward.Option) echo.MiddlewareFunc {
	m := &middleware{protected: guard.HandlerFunc(run, options...)}
	return m.wrap
}

// FromRequest returns echo's context of a request that the guard was given, for a [onceward.ScopeFunc] that needs what
// a middleware has set there. It may be used as long as the request is served.
func FromRequest(r *http.Request) (*echo.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.echo, true
}

// middleware is a protection.
type middleware struct{ protected http.Handler }

// wrap returns next with protection. Without a next, an audit asks for the protection: see [protection].
func (m *middleware) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	if next == nil {
		asked.protected.Store(&m.protected)
		return nil
	}
	return func(c *echo.Context) error { return m.serve(c, next) }
}

// exchange is a request on its way through the guard, in whose context it travels.
type exchange struct {
	context.Context
	front
	next echo.HandlerFunc
	// request is the guard's.
	request http.Request
	// path and values belong to the route.
	path   string
	values echo.PathValues
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
func (m *middleware) serve(c *echo.Context, next echo.HandlerFunc) error {
	request, response := c.Request(), c.Response()
	defer func() {
		c.SetRequest(request)
		c.SetResponse(response)
	}()
	x := &exchange{Context: request.Context(), front: front{echo: c, response: response}, next: next}
	x.request = *request.WithContext(x)
	x.request.Pattern = c.Path()
	m.protected.ServeHTTP(&x.front, &x.request)
	return x.err
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
	x.err = x.next(c)
	if x.err != nil {
		x.failed(r.Context())
	}
}

// failed answers an error of the handler as echo does, and records it. An error that was returned after the answer had
// begun continues to what is in front, as without protection.
func (x *exchange) failed(ctx context.Context) {
	err := x.err
	if response, unwrapErr := echo.UnwrapResponse(x.echo.Response()); unwrapErr != nil || !response.Committed {
		x.err = nil
		x.echo.Echo().HTTPErrorHandler(x.echo, err)
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// answerTo is echo's kind of writer around that of the guard. What a run that was undone has left behind must not reach
// into the next one.
func (x *exchange) answerTo(w http.ResponseWriter) *echo.Response {
	response := echo.NewResponse(w, x.echo.Logger())
	response.Status = http.StatusOK // as echo begins
	if x.ran {
		x.echo.SetPath(x.path)
		x.echo.SetPathValues(slices.Clone(x.values))
		return response
	}
	x.path, x.values = x.echo.Path(), slices.Clone(x.echo.PathValues())
	x.ran, x.first = true, *response
	return &x.first
}
