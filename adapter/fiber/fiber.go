// Package oncewardfiber protects handlers of fiber v3:
//
//	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, createPayment, onceward.Transactional()))
//
// In the handler, c.Context() has the transaction. [Audit] fails at startup if a route is not protected, and
// [FromRequest] gives a scope function access to the values that authentication in fiber has set. docs/routers.md links
// to a complete program.
//
// There is no middleware form: fiber runs its chain once, but the guard runs a handler again if the database undid its
// transaction.
//
// fiber is based on fasthttp, which reuses requests and buffers. The guard gets a copy.
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

// ErrNotLast is the error of a request whose protected handler is a middleware, or has handlers after it. The later
// handlers could not run again, and would run without protection.
var ErrNotLast = errors.New("oncewardfiber: a protected handler is not the last one of its route: " +
	"register it by app.Post or its kin, with nothing behind it")

// Handler returns next with protection: for each key, next runs once. The name of the operation is the method and the
// path of the route, such as "POST /accounts/:account/payments". Handler panics if the options are invalid, as
// [onceward.Guard.Handler] does.
//
// next finds the transaction and the operation in c.Context(), and in c itself. If next returns an error, the
// ErrorHandler of the app answers it inside the guard, so that the answer is stored. next must be the last handler of
// its route: see [ErrNotLast]. Middlewares before it also run for each retry.
//
// A streamed response body is read completely before it is sent, because it is stored. fasthttp does not report that a
// client has disconnected, so the handler cannot see it; the work continues in any case.
func Handler(guard *onceward.Guard, next fiber.Handler, options ...onceward.Option) fiber.Handler {
	r := &route{next: next}
	r.protected = guard.HandlerFunc(r.run, options...)
	return r.serve
}

// FromRequest returns fiber's context of a request that the guard received. It is for a [onceward.ScopeFunc] that needs
// values that a middleware has set in that context. The context may be used until the request is answered.
func FromRequest(r *http.Request) (fiber.Ctx, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.fiber, true
}

// Audit returns an error if a route of the app changes state, and is neither protected nor exempt: see
// [onceward.AuditStrict]. It also gives the guards the names of their operations. Call it when all routes are
// registered and all apps are mounted: it adds the routes of mounted apps, as fiber does at its start and only once.
func Audit(app *fiber.App, exempt ...string) error {
	app.Handler() // its side effect: GetRoutes then includes the routes of mounted apps
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

// exchange is a request that passes through the guard. It is part of the request's context.
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

	unprotected bool  // the handler uses fiber's request and response directly
	err         error // the handler's error in this case; fiber answers it
}

type exchangeKey struct{}

// Value implements [context.Context].
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serve is the handler that fiber calls.
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

// serve lets the guard answer. If the guard aborts the connection, because it could not store the end of an answer that
// it has written, nothing was sent yet, so the client gets an error instead.
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

// end copies the guard's answer to fiber's response. If there is no answer although the handler ran, for example
// because it panicked, end restores the response from before the guard.
func (x *exchange) end() {
	defer x.writer.close()
	if x.fiber.IsAbandoned() {
		return // the request is already answered, and its context may still be in use
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

// run is the handler that the guard calls. The guard calls it again if the database undid the transaction. fiber's
// timeout middleware, inside or outside of the protection, abandons a handler that is too slow: the handler continues
// in the background, and the middleware overwrites its answer. The outcome is then unknown.
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
		return // c.Next moved to another route and cannot do so again; the guard notices that nothing ran
	}
	if err := x.prepare(request); err != nil {
		panic(err) // the body is in memory
	}
	c.SetContext(request.Context())
	c.RequestCtx().SetUserValue(store.ContextName, request.Context()) // fiber's context lacks its values
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

// prepare prepares fiber's context for a run. Before the first run it saves the state that the handler may change, and
// sets the body that the guard has read. Before a later run it restores this state.
func (x *exchange) prepare(handed *http.Request) error {
	if x.ran {
		return x.restore(handed)
	}
	x.note()
	return x.body.handOn(x.fiber, handed)
}

// errDropped is the failure of a handler that closed the connection without an answer.
var errDropped = errors.New("the handler closed the connection of its client")

// dropped reports whether a handler closed the connection without an answer, as c.Drop does.
func dropped(c fiber.Ctx) bool {
	if c.RequestCtx().ConnRequestNum() == 0 { // there is no connection: the request comes from net/http or a test
		return false
	}
	if c.Response().StatusCode() != fiber.StatusOK || c.Response().IsBodyStream() || len(c.Response().Body()) > 0 {
		return false
	}
	err := c.RequestCtx().Conn().SetWriteDeadline(time.Time{}) // the server sets its own deadline later
	return errors.Is(err, net.ErrClosed)
}

// answerFailure answers an error of the handler as fiber does after the chain, and records the error.
func (x *exchange) answerFailure(ctx context.Context, err error) {
	if c := x.fiber; c.App().ErrorHandler(c, err) != nil {
		_ = c.SendStatus(fiber.StatusInternalServerError) // SendStatus always returns nil
	}
	onceward.FromContext(ctx).HandlerFailed(err)
}

// probe is the context that makes a protected handler return its protection.
type probe struct {
	fiber.Ctx
	found http.Handler
}

// serving is the code pointer that all protected handlers share.
var serving = reflect.ValueOf((*route)(nil).serve).Pointer()

// protection returns the protection of a handler, or nil if it has none.
func protection(h fiber.Handler) http.Handler {
	if reflect.ValueOf(h).Pointer() != serving {
		return nil
	}
	var p probe
	_ = h(&p) // only stores the protection in p
	return p.found
}
