package payments

import (
	"net/http"

	"github.com/gorilla/mux"
	"github.com/onceward/onceward"
)

// Protect serves a route inside of the guard, named by its whole template. It panics if that is not valid, as the guard
// does for options that are not.
func Protect(
	router *mux.Router, method, path string, next http.HandlerFunc, guard *onceward.Guard, options ...onceward.Option,
) {
	route := router.Methods(method).Path(path)
	template, err := route.GetPathTemplate()
	if err != nil {
		panic(err)
	}
	route.Handler(guard.HandlerFunc(next, append(options, onceward.OperationName(method+" "+template))...))
}

// Audit returns an error if a route changes state and is neither protected nor exempt.
func Audit(router *mux.Router, exempt ...string) error {
	var routes []onceward.RouteInfo
	err := router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		if route.GetHandler() == nil {
			return nil // that of a subrouter
		}
		template, _ := route.GetPathTemplate()
		methods, err := route.GetMethods()
		if err != nil {
			methods = []string{""} // it answers all
		}
		for _, method := range methods {
			routes = append(routes, onceward.RouteInfo{Method: method, Pattern: template, Handler: route.GetHandler()})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return onceward.AuditStrict(routes, exempt...)
}
