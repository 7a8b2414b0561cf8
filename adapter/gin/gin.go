// Package oncewardgin protects handlers of gin:
//
//	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, createPayment, onceward.Transactional()))
//
// In the handler, c.Request.Context() has the transaction. [Audit] fails a start with routes that were forgotten, and
// [FromRequest] gives a scope function what an authentication in gin has set. docs/routers.md links to a whole program.
//
// There is no middleware form: gin's chain runs once, and the guard runs a handler again if the database undid its
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

// Handler returns next with protection: for each key, next runs once. The operation is named by its method and the path
// of its route, such as "POST /accounts/:account/payments". It panics if the options cannot be right, as
// [onceward.Guard.Handler] does.
//
// next finds the transaction and the operation in c.Request.Context(), and in c itself, for which c.Keys gets one entry
// if the engine is without ContextWithFallback. What next can ask gin is the same as without protection: c.IsAborted,
// c.Writer, c.Keys, c.Errors, c.Next. Handlers that are registered after it run with it, inside of its protection, and
// not when an answer is replayed. Middlewares in front of it run at each retry too.
//
// gin's chain runs once. If the database undoes the transaction, the guard runs next again, unless next has aborted the
// chain or there are handlers after it: such a request is answered 503 "not-executed", and its retry executes.
func Handler(guard *onceward.Guard, next gin.HandlerFunc, options ...onceward.Option) gin.HandlerFunc {
	r := &route{next: next}
	r.protected = guard.HandlerFunc(r.run, options...)
	return r.serve
}

// FromRequest returns gin's context of a request that the guard was given, for a [onceward.ScopeFunc] that needs what a
// middleware has set there. It may be used as long as the request is served.
func FromRequest(r *http.Request) (*gin.Context, bool) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	return x.gin, true
}

// Audit returns an error if a route of the engine changes state, and is neither protected nor exempt: see
// [onceward.AuditStrict]. Guards learn the names of their operations from it. Call it when all routes are registered.
// gin shows the last handler of a route alone: a protected handler with others after it is not seen.
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

// exchange is a request on its way through the guard, in whose context it travels.
type exchange struct {
	context.Context
	front
	request http.Request // the guard's
	restore func()       // gives gin's context what was set in front of the handler
	errors  int          // how many errors there were in front of the handler
	status  int          // that a middleware has set; zero if none has
	ran     bool         // under protection
	whole   bool         // the run that was last, with what is behind the handler, has returned
	own     bool         // without protection, as gin's own
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

// serve is what gin calls.
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
			c.Abort() // what is behind the handler runs with it, and with no other answer
		}
	}()
	r.protected.ServeHTTP(&x.front, &x.request)
}

// run is what the guard calls: again, if the database undid the transaction. Nothing of what the handler said to gin
// before is left then.
func (r *route) run(w http.ResponseWriter, request *http.Request) {
	x := request.Context().Value(exchangeKey{}).(*exchange)
	c := x.gin
	if w == http.ResponseWriter(&x.front) { // the request runs without protection, and is gin's own
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
	if c.Value(exchangeKey{}) == nil { // gin's context has no values of the request's, but its own
		c.Set(store.ContextName, request.Context())
	}
	x.ran, x.whole = true, false
	*answer = writer{ResponseWriter: w, ctx: request.Context(), status: x.status}
	c.Writer = answer
	r.next(c)
	if !rerun {
		c.Next() // of what is behind the handler, what it has not run by itself
	}
	answer.end()
	// An error beside a success is a note, unless the chain was aborted: gin does that if it could write no answer, or only
	// a part of it. An error without an answer is for a middleware in front, whose answer comes too late to be stored.
	failed := !answer.written || c.IsAborted() || answer.Status() >= http.StatusBadRequest
	if last := c.Errors.Last(); last != nil && len(c.Errors) > x.errors && failed {
		onceward.FromContext(request.Context()).HandlerFailed(last.Err)
	}
	x.whole = true
}

// keep returns a function that gives gin's context its present keys, errors and parameters. The type of the keys differs
// between versions of gin.
func keep(c *gin.Context) (restore func()) {
	keys, errors, params := maps.Clone(c.Keys), slices.Clone(c.Errors), slices.Clone(c.Params)
	return func() { c.Keys, c.Errors, c.Params = maps.Clone(keys), slices.Clone(errors), slices.Clone(params) }
}

// isLast reports whether a protected handler is the last of its chain, which gin names.
func isLast(c *gin.Context) bool {
	return strings.HasSuffix(c.HandlerName(), "/adapter/gin.(*route).serve-fm")
}

// probed is where a protected handler leaves its protection, if it is called without a request.
const probed = "github.com/onceward/onceward/adapter/gin"

// serving is the code of all protected handlers.
var serving = reflect.ValueOf((*route)(nil).serve).Pointer()

// protection is that of a handler; nil if it has none.
func protection(h gin.HandlerFunc) http.Handler {
	if reflect.ValueOf(h).Pointer() != serving {
		return nil
	}
	var c gin.Context
	h(&c)
	return c.MustGet(probed).(http.Handler)
}
