// Package oncewardecho5 protects handlers of echo v5:
//
//	router.POST("/accounts/:account/payments", createPayment, oncewardecho5.Middleware(guard, onceward.Transactional()))
//
// In the handler, c.Request().Context() has the transaction. [Watch] and [Routes.Audit] fail at startup if a route is
// not protected, and [FromRequest] gives a scope function access to the values that authentication in echo has set.
// docs/routers.md links to a complete program.
//
// If a handler returns an error, the router's own HTTPErrorHandler answers it inside the guard, so that the answer is
// stored like any other.
package oncewardecho5

import (
	"context"
	"net/http"
	"slices"

	"github.com/labstack/echo/v5"

	"github.com/onceward/onceward"
)

// Middleware returns a middleware that protects a route, or the routes of a group. The name of the operation is the
// method and the path of the route, such as "POST /accounts/:account/payments". Middleware panics if the options are
// invalid, as [onceward.Guard.Middleware] does.
//
// The wrapped handler finds the transaction and the operation in c.Request().Context(). It runs again if the database
// undid its transaction. The path and the parameters of c are then reset. Values that c.Set has stored remain, because
// echo does not list them: a handler must not skip a write because of a value that it has set itself. If the handler
// returns an error, the request fails like a 5xx, unless the error is answered with a status of 400 or more. Errors are
// answered inside the guard. Only an error that is returned after the answer has begun is passed to the earlier
// middlewares.
func Middleware(guard *onceward.Guard, options ...onceward.Option) echo.MiddlewareFunc {
	m := &middleware{protected: guard.HandlerFunc(run, options...)}
	return m.wrap
}

// FromRequest returns echo's context of a request that the guard received. It is for a [onceward.ScopeFunc] that needs
// values that a middleware has set in that context. The context may be used until the request is answered.
func FromRequest(r *http.Request) (*echo.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.echo, true
}

// middleware is the protection of a route or a group.
type middleware struct{ protected http.Handler }

// wrap returns next with protection. Without next, it stores the protection for an audit: see [protection].
func (m *middleware) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	if next == nil {
		asked.protected.Store(&m.protected)
		return nil
	}
	return func(c *echo.Context) error { return m.serve(c, next) }
}

// exchange is a request that passes through the guard. It is part of the request's context.
type exchange struct {
	context.Context
	front
	next echo.HandlerFunc
	// request is the request that the guard receives.
	request http.Request
	// path and values are the values of the route before the first run.
	path   string
	values echo.PathValues
	first  echo.Response
	ran    bool
	err    error // the error for echo: without protection, or after the answer has begun
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
	x.err = x.next(c)
	if x.err != nil {
		x.failed(r.Context())
	}
}

// failed answers an error of the handler as echo does, and records it. An error that was returned after the answer had
// begun is passed to the earlier middlewares, as without protection.
func (x *exchange) failed(ctx context.Context) {
	err := x.err
	if response, unwrapErr := echo.UnwrapResponse(x.echo.Response()); unwrapErr != nil || !response.Committed {
		x.err = nil
		x.echo.Echo().HTTPErrorHandler(x.echo, err)
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// answerTo returns an echo response around the guard's writer. Before a later run it restores the path and the
// parameters, so that a run that was undone does not affect the next one.
func (x *exchange) answerTo(w http.ResponseWriter) *echo.Response {
	response := echo.NewResponse(w, x.echo.Logger())
	response.Status = http.StatusOK // echo's initial value
	if x.ran {
		x.echo.SetPath(x.path)
		x.echo.SetPathValues(slices.Clone(x.values))
		return response
	}
	x.path, x.values = x.echo.Path(), slices.Clone(x.echo.PathValues())
	x.ran, x.first = true, *response
	return &x.first
}
