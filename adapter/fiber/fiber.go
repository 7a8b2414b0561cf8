// Package oncewardfiber protects handlers of fiber v3:
//
//	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, createPayment, onceward.Transactional()))
//
// In the handler, c.Context() has the transaction. [Audit] fails a start with routes that were forgotten, and
// [FromRequest] gives a scope function what an authentication in fiber has set. docs/routers.md links to a whole program.
//
// There is no middleware form: fiber's chain runs once, and the guard runs a handler again if the database undid its
// transaction.
//
// fiber stands on fasthttp, whose requests and buffers are used again. What the guard gets is a copy.
package oncewardfiber

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// ErrNotLast is what a request fails with whose protected handler is a middleware, or has handlers behind it: they
// could not run again, and would run without protection.
var ErrNotLast = errors.New("oncewardfiber: a protected handler is not the last one of its route: " +
	"register it by app.Post or its kin, with nothing behind it")

// Handler returns next with protection: for each key, next runs once. The operation is named by its method and the path
// of its route, such as "POST /accounts/:account/payments". It panics if the options cannot be right, as
// [onceward.Guard.Handler] does.
//
// next finds the transaction and the operation in c.Context(), and in c itself. An error that it returns is answered inside of the
// guard, by the ErrorHandler of the app, so that the answer is stored. It is the last one of its route: see
// [ErrNotLast].
// Middlewares in front of it run at each retry.
//
// A body that streams is read whole before it is sent, because it is stored. That a client has left is not seen, as
// fasthttp does not tell; its work goes on in any case.
func Handler(guard *onceward.Guard, next fiber.Handler, options ...onceward.Option) fiber.Handler {
	r := &route{next: next}
	r.protected = guard.HandlerFunc(r.run, options...)
	return r.serve
}

// FromRequest returns fiber's context of a request that the guard was given, for a [onceward.ScopeFunc] that needs what
// a middleware has set there. It may be used as long as the request is served.
func FromRequest(r *http.Request) (fiber.Ctx, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.fiber, true
}

// Audit returns an error if a route of the app changes state, and is neither protected nor exempt: see
// [onceward.AuditStrict]. Guards learn the names of their operations from it. Call it when all routes are registered
// and all apps are mounted: it takes in their routes, as fiber does at its start and only once.
func Audit(app *fiber.App, exempt ...string) error {
	app.Handler() // with its side effect: GetRoutes has the routes of mounted apps then
	var routes []onceward.RouteInfo
	for _, r := range app.GetRoutes(true) {
		route := onceward.RouteInfo{Method: r.Method, Pattern: r.Path}
		if n := len(r.Handlers); n > 0 {
			route.Handler = protection(r.Handlers[n-1])
		}
		routes = append(routes, route)
	}
	return onceward.AuditStrict(routes, exempt...)
}

// route is a handler with protection.
type route struct {
	next      fiber.Handler
	protected http.Handler
}

// exchange is a request on its way through the guard, in whose context it travels.
type exchange struct {
	context.Context
	fiber   fiber.Ctx
	route   *fiber.Route
	request http.Request
	url     url.URL
	body    body
	writer  writer
	found   found
	ran     bool

	unprotected bool  // the handler has the request and the response as they are
	err         error // of such a request, which fiber answers
}

type exchangeKey struct{}

// Value implements [context.Context].
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serve is what fiber calls.
func (r *route) serve(c fiber.Ctx) error {
	if p, ok := c.(*probe); ok {
		p.found = r.protected
		return nil
	}
	if c.IsMiddleware() {
		return ErrNotLast
	}
	x := &exchange{Context: c.Context(), fiber: c, route: c.Route()}
	x.writer.open(c)
	defer x.end()
	if err := x.writer.headers.request(x); err != nil {
		return fiber.NewError(fiber.StatusBadRequest, err.Error())
	}
	x.serve(r.protected)
	return x.err
}

// serve lets the guard answer. Where it would cut the connection, because it has sent an answer whose end it could not
// store, there is still time to say that it failed.
func (x *exchange) serve(protected http.Handler) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			x.writer.written, x.err = false, fiber.ErrInternalServerError
		default:
			panic(p)
		}
	}()
	protected.ServeHTTP(&x.writer, &x.request)
}

// end leaves the guard's answer in fiber's response, or what was in front of the guard if there is none: nothing of a
// handler that panicked.
func (x *exchange) end() {
	defer x.writer.close()
	if x.fiber.IsAbandoned() {
		return // it is answered, and perhaps in use
	}
	x.fiber.SetContext(x.Context)
	x.fiber.RequestCtx().RemoveUserValue(store.ContextName)
	switch {
	case x.writer.written:
		x.writer.response.CopyTo(x.fiber.Response())
	case x.ran:
		x.writer.before.CopyTo(x.fiber.Response())
	}
	if x.body.leftOver() && !x.unprotected {
		x.fiber.RequestCtx().SetConnectionClose()
	}
}

// run is what the guard calls: again, if the database undid the transaction. fiber's timeout middleware, be it inside
// or around, abandons a handler that goes on behind it and writes its own answer over the handler's: what that was is
// not known.
func (r *route) run(w http.ResponseWriter, request *http.Request) {
	x := request.Context().Value(exchangeKey{}).(*exchange)
	c := x.fiber
	if w == http.ResponseWriter(&x.writer) {
		c.SetContext(request.Context())
		x.unprotected = true
		x.err = r.next(c)
		return
	}
	if x.ran && c.Route() != x.route {
		return // c.Next went on to another route, and cannot do so again: the guard notices that nothing ran
	}
	if err := x.prepare(request); err != nil {
		panic(err) // the body is in memory
	}
	c.SetContext(request.Context())
	c.RequestCtx().SetUserValue(store.ContextName, request.Context()) // fiber's context has no other values
	x.ran = true
	err := r.next(c)
	if !c.IsAbandoned() {
		if err == nil && dropped(c) {
			onceward.FromContext(request.Context()).HandlerFailed(errDropped)
		}
		if err != nil {
			x.answerFailure(request.Context(), err)
		}
		x.take(request.Context(), w)
	}
	if c.IsAbandoned() {
		onceward.FromContext(request.Context()).Unknown()
	}
}

// prepare gives fiber what the guard has read, and to a run after one that was undone what that one had found.
func (x *exchange) prepare(handed *http.Request) error {
	if x.ran {
		return x.restore(handed)
	}
	x.note()
	return x.body.handOn(x.fiber, handed)
}

// errDropped is the failure of a handler that left its client without an answer.
var errDropped = errors.New("the handler closed the connection of its client")

// dropped reports whether a handler without an answer has closed the connection, as c.Drop does.
func dropped(c fiber.Ctx) bool {
	if c.RequestCtx().ConnRequestNum() == 0 { // it has no connection: it comes from net/http, or from a test
		return false
	}
	if c.Response().StatusCode() != fiber.StatusOK || c.Response().IsBodyStream() || len(c.Response().Body()) > 0 {
		return false
	}
	err := c.RequestCtx().Conn().SetWriteDeadline(time.Time{}) // which the server sets when it sends an answer
	return errors.Is(err, net.ErrClosed)
}

// answerFailure answers an error of the handler as fiber does when the chain has ended, and records it.
func (x *exchange) answerFailure(ctx context.Context, err error) {
	if c := x.fiber; c.App().ErrorHandler(c, err) != nil {
		_ = c.SendStatus(fiber.StatusInternalServerError) // it always returns nil
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// probe is the context with which a protected handler is asked for its protection.
type probe struct {
	fiber.Ctx
	found http.Handler
}

// serving is the code of all protected handlers.
var serving = reflect.ValueOf((*route)(nil).serve).Pointer()

// protection is that of a handler; nil if it has none.
func protection(h fiber.Handler) http.Handler {
	if reflect.ValueOf(h).Pointer() != serving {
		return nil
	}
	var p probe
	_ = h(&p) // it only leaves its protection there
	return p.found
}
