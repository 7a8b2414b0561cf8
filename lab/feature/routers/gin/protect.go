package payments

import (
	"context"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/onceward/onceward"
)

// Protector protects routes of gin, and remembers them.
type Protector map[string]http.Handler

type contextKey struct{} // under which the guard's request carries gin's context

// Handle serves a route inside of the guard. It calls the handler itself, not c.Next: the guard runs it again if the
// database undid its transaction, and not at all if there is an answer to replay.
func (p Protector) Handle(
	g *gin.RouterGroup, method, relative string, next gin.HandlerFunc, guard *onceward.Guard, options ...onceward.Option,
) {
	name := method + " " + strings.TrimSuffix(g.BasePath(), "/") + relative
	protected := guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(contextKey{}).(*gin.Context)
		// The one function with which gin puts its own kind of writer around that of the guard. Any engine will do.
		c.Writer, c.Request = gin.CreateTestContextOnly(w, new(gin.Engine)).Writer, r
		next(c)
		if c.Writer.Status() != http.StatusOK { // so that c.Status alone counts; silence is the guard's to judge
			c.Writer.WriteHeaderNow()
		}
	}, append(options, onceward.OperationName(name))...)
	p[name] = protected
	g.Handle(method, relative, func(c *gin.Context) {
		defer func(w gin.ResponseWriter, r *http.Request) { c.Writer, c.Request = w, r }(c.Writer, c.Request)
		ctx := context.WithValue(c.Request.Context(), contextKey{}, c)
		protected.ServeHTTP(c.Writer, c.Request.WithContext(ctx))
	})
}

// Audit returns an error if a route changes state and is neither protected nor exempt.
func (p Protector) Audit(engine *gin.Engine, exempt ...string) error {
	var routes []onceward.RouteInfo
	for _, r := range engine.Routes() {
		routes = append(routes, onceward.RouteInfo{Method: r.Method, Pattern: r.Path, Handler: p[r.Method+" "+r.Path]})
	}
	return onceward.AuditStrict(routes, exempt...)
}
