// Package oncewardgin protects handlers of gin:
//
//	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, createPayment, onceward.Transactional()))
//
// In the handler, c.Request.Context() has the transaction. [Audit] fails a start with routes that were forgotten, and
// [FromRequest] gives a scope function what an authentication in gin has set. docs/routers.md has a whole program.
//
// There is no middleware form: gin's chain runs once, and the guard runs a handler again if the database undid its
// transaction.
package oncewardgin

import (
	"context"
	"maps"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/onceward/onceward"
)

// Handler returns next with protection: for each key, next runs once. The operation is named by its method and the path
// of its route, such as "POST /accounts/:account/payments". It panics if the options cannot be right, as
// [onceward.Guard.Handler] does.
//
// next finds the transaction and the operation in c.Request.Context(). It is the last of its chain: c.Next does nothing
// in it, and what is registered behind it does not run, because that would run at each retry, without protection.
// Middlewares in front of it run at each retry too.
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
func Audit(engine *gin.Engine, exempt ...string) error {
	var routes []onceward.RouteInfo
	for _, r := range engine.Routes() {
		routes = append(routes, onceward.RouteInfo{Method: r.Method, Pattern: r.Path, Handler: protection(r.HandlerFunc)})
	}
	return onceward.AuditStrict(routes, exempt...)
}

// route is a handler with protection.
type route struct {
	next      gin.HandlerFunc
	protected http.Handler
}

// exchange is a request on its way through the guard, in whose context it travels.
type exchange struct {
	context.Context
	gin     *gin.Context
	request http.Request // the guard's
	keys    map[any]any  // what was set in front of the handler
	errors  int          // how many
	ran     bool
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
	c.Abort() // nothing runs behind the guard by itself: not after an answer, and not out of the handler
	w, request := c.Writer, c.Request
	defer func() { c.Writer, c.Request = w, request }()
	x := &exchange{Context: request.Context(), gin: c, keys: maps.Clone(c.Keys), errors: len(c.Errors)}
	x.request = *request.WithContext(x)
	x.request.Pattern = c.FullPath()
	r.protected.ServeHTTP(w, &x.request)
}

// run is what the guard calls: again, if the database undid the transaction. Of what the handler told gin before,
// nothing is left then.
func (r *route) run(w http.ResponseWriter, request *http.Request) {
	x := request.Context().Value(exchangeKey{}).(*exchange)
	c := x.gin
	if _, own := w.(gin.ResponseWriter); own { // the request runs without protection, and is gin's own
		r.next(c)
		return
	}
	c.Request = request
	answer := &x.first
	if x.ran {
		c.Keys, c.Errors, answer = maps.Clone(x.keys), c.Errors[:x.errors], new(writer)
	}
	x.ran = true
	answer.ResponseWriter, answer.ctx = w, request.Context()
	c.Writer = answer
	r.next(c)
	answer.end()
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
