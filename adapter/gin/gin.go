// Package oncewardgin protects handlers of gin:
//
//	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, createPayment, onceward.Transactional()))
//
// In the handler, c.Request.Context() has the transaction. [Audit] fails at startup if a route is not protected, and
// [FromRequest] gives a scope function access to the values that authentication in gin has set. docs/routers.md links
// to a complete program.
//
// There is no middleware form: gin runs its chain once, but the guard runs a handler again if the database undid its
// transaction.
package oncewardgin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// Handler returns next with protection: for each key, next runs once. The name of the operation is the method and the
// path of the route, such as "POST /accounts/:account/payments". Handler panics if the options are invalid, as
// [onceward.Guard.Handler] does.
//
// next finds the transaction and the operation in c.Request.Context(), and in c itself; for this c.Keys gets one entry
// if the engine does not set ContextWithFallback. gin's functions behave as without protection: c.IsAborted, c.Writer,
// c.Keys, c.Errors, c.Next. Handlers that are registered after next run together with it, inside its protection, and do
// not run when an answer is replayed. Middlewares before it also run for each retry.
//
// gin runs its chain once. If the database undoes the transaction, the guard runs next again, unless next has aborted
// the chain or there are handlers after it: then the request is answered with 503 "not-executed", and its retry
// executes.
func Handler(guard *onceward.Guard, next gin.HandlerFunc, options ...onceward.Option) gin.HandlerFunc {
	r := &route{next: next}
	r.protected = guard.HandlerFunc(r.run, options...)
	return r.serve
}

// FromRequest returns gin's context of a request that the guard received. It is for a [onceward.ScopeFunc] that needs
// values that a middleware has set in that context. The context may be used until the request is answered.
func FromRequest(r *http.Request) (*gin.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.gin, true
}

// Audit returns an error if a route of the engine changes state, and is neither protected nor exempt: see
// [onceward.AuditStrict]. It also gives the guards the names of their operations. Call it when all routes are
// registered. gin exposes only the last handler of a route: Audit does not see a protected handler with other handlers
// after it.
func Audit(engine *gin.Engine, exempt ...string) error {
	var routes []onceward.RouteInfo
	for _, r := range engine.Routes() {
		routes = append(routes, onceward.RouteInfo{Method: r.Method, Pattern: r.Path, Handler: protection(r.HandlerFunc)})
	}
	err := onceward.AuditStrict(routes, exempt...)
	if err != nil {
		err = fmt.Errorf("%w (gin shows the last handler of a route alone: if a protected one is in front of it, make that "+
			"the last, or exempt the route)", err)
	}
	return err
}

// route is a handler with protection.
type route struct {
	next      gin.HandlerFunc
	protected http.Handler
}

// exchange is a request that passes through the guard. It is part of the request's context.
type exchange struct {
	context.Context
	front
	request http.Request // the request that the guard receives
	restore func()       // resets gin's context to the state before the handler
	errors  int          // number of errors before the handler
	status  int          // status that a middleware has set; zero if none
	ran     bool         // the handler ran under protection
	whole   bool         // the last run, including later handlers, has returned
	own     bool         // the request runs without protection, with gin's own writer
	first   writer
}

type exchangeKey struct{}

// Value implements [context.Context].
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serve is the handler that gin calls.
func (r *route) serve(c *gin.Context) {
	if c.Request == nil {
		c.Set(probed, r.protected)
		return
	}
	w, request := c.Writer, c.Request
	defer func() {
		c.Writer, c.Request = w, request
		delete(c.Keys, store.ContextName)
	}()
	x := &exchange{Context: request.Context(), front: front{gin: c, writer: w}}
	if status := w.Status(); status != http.StatusOK {
		x.status = status
	}
	x.request = *request.WithContext(x)
	x.request.Pattern = c.FullPath()
	defer func() {
		if !x.own && !x.whole {
			c.Abort() // later handlers run only together with the handler
		}
	}()
	r.protected.ServeHTTP(&x.front, &x.request)
}

// run is the handler that the guard calls. The guard calls it again if the database undid the transaction. The second
// run does not see the changes that the first run made to gin's context.
func (r *route) run(w http.ResponseWriter, request *http.Request) {
	x := request.Context().Value(exchangeKey{}).(*exchange)
	c := x.gin
	if w == http.ResponseWriter(&x.front) { // the request runs without protection
		x.own = true
		r.next(c)
		return
	}
	c.Request = request
	answer, rerun := &x.first, x.ran
	if !rerun {
		x.restore, x.errors = keep(c), len(c.Errors)
	} else {
		if c.IsAborted() || !x.whole || !isLast(c) {
			onceward.FromContext(request.Context()).NotExecuted() // gin's chain cannot run again
			return
		}
		x.restore()
		answer = new(writer)
	}
	if c.Value(exchangeKey{}) == nil { // gin's context does not have the values of the request's context
		c.Set(store.ContextName, request.Context())
	}
	x.ran, x.whole = true, false
	*answer = writer{ResponseWriter: w, ctx: request.Context(), status: x.status}
	c.Writer = answer
	r.next(c)
	if !rerun {
		c.Next() // runs the later handlers that the handler has not run itself
	}
	answer.end()
	// An error beside a successful answer is only a note, unless the chain was aborted: gin aborts if it could not
	// write the answer, or only a part of it. An error without an answer is for an earlier middleware, whose answer
	// comes too late to be stored.
	failed := !answer.written || c.IsAborted() || answer.Status() >= http.StatusBadRequest
	if last := c.Errors.Last(); last != nil && len(c.Errors) > x.errors && failed {
		onceward.FromContext(request.Context()).HandlerFailed(last.Err)
	}
	x.whole = true
}

// keep returns a function that restores the current keys, errors and parameters of gin's context. The type of the keys
// differs between versions of gin.
func keep(c *gin.Context) (restore func()) {
	keys, errors, params := maps.Clone(c.Keys), slices.Clone(c.Errors), slices.Clone(c.Params)
	return func() { c.Keys, c.Errors, c.Params = maps.Clone(keys), slices.Clone(errors), slices.Clone(params) }
}

// isLast reports whether a protected handler is the last of its chain. gin's HandlerName returns the name of the last
// handler.
func isLast(c *gin.Context) bool {
	return strings.HasSuffix(c.HandlerName(), "/adapter/gin.(*route).serve-fm")
}

// probed is the key under which a protected handler stores its protection if it is called without a request.
const probed = "github.com/onceward/onceward/adapter/gin"

// serving is the code pointer that all protected handlers share.
var serving = reflect.ValueOf((*route)(nil).serve).Pointer()

// protection returns the protection of a handler, or nil if it has none.
func protection(h gin.HandlerFunc) http.Handler {
	if reflect.ValueOf(h).Pointer() != serving {
		return nil
	}
	var c gin.Context
	h(&c)
	return c.MustGet(probed).(http.Handler)
}
