package routers

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	"github.com/onceward/onceward"
	viaecho4 "github.com/onceward/onceward/lab/feature/routers/echo4"
	viaecho5 "github.com/onceward/onceward/lab/feature/routers/echo5"
	viagin "github.com/onceward/onceward/lab/feature/routers/gin"
	viagorilla "github.com/onceward/onceward/lab/feature/routers/gorilla"
)

// The parts of a recipe's route.
const (
	bracedPath = "/accounts/{account}/payments"
	colonPath  = "/accounts/:account/payments"
)

// protectSilent protects a handler that works and writes nothing.
type protectSilent func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler

// silence protects as each recipe does.
var silence = map[string]protectSilent{
	"net/http": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		router := http.NewServeMux()
		handler := func(_ http.ResponseWriter, r *http.Request) { work(r.Context()) }
		router.Handle(braced, guard.HandlerFunc(handler, options...))
		return router
	},
	"chi": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		router := chi.NewRouter()
		router.With(guard.Middleware(options...)).
			Post(bracedPath, func(_ http.ResponseWriter, r *http.Request) { work(r.Context()) })
		return router
	},
	"gorilla/mux": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		router := mux.NewRouter()
		handler := func(_ http.ResponseWriter, r *http.Request) { work(r.Context()) }
		viagorilla.Protect(router, http.MethodPost, bracedPath, handler, guard, options...)
		return router
	},
	"gin": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		engine := gin.New()
		handler := func(c *gin.Context) { work(c.Request.Context()) }
		viagin.Protector{}.Handle(&engine.RouterGroup, http.MethodPost, colonPath, handler, guard, options...)
		return engine
	},
	"echo v4": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		router := echov4.New()
		viaecho4.Protector{}.Handle(router.Add, http.MethodPost, colonPath, func(c echov4.Context) error {
			work(c.Request().Context())
			return nil
		}, guard, options...)
		return router
	},
	"echo v5": func(guard *onceward.Guard, work func(context.Context), options ...onceward.Option) http.Handler {
		router := echov5.New()
		viaecho5.Protector{}.Handle(router.Add, http.MethodPost, colonPath, func(c *echov5.Context) error {
			work(c.Request().Context())
			return nil
		}, guard, options...)
		return router
	},
}

// TestSilentHandlers: a handler that gives up at its deadline without a word is no success, under any router; one that
// ends in time without a word is an empty 200, of which the log tells.
func TestSilentHandlers(t *testing.T) {
	t.Parallel()
	reserved := onceward.Reserved(onceward.FailureUnknown)
	for name, protect := range silence {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, test := range []struct {
				mode         string
				options      []onceward.Option
				first, again int
				code         string
			}{
				{"reserved", []onceward.Option{reserved}, 500, 409, "outcome-unknown"},
				{"transactional", []onceward.Option{onceward.Transactional()}, 503, 503, "deadline-exceeded"},
			} {
				s := newService(t)
				late := func(ctx context.Context) { <-ctx.Done() }
				s.serve(protect(s.guard, late, append(test.options, onceward.Deadline(20*time.Millisecond))...))
				first := s.want(test.mode+", past its deadline", s.post("a", "k", `{}`), test.first, false)
				again := s.want(test.mode+", again", s.post("a", "k", `{}`), test.again, false)
				if !strings.Contains(first.body, test.code) || !strings.Contains(again.body, test.code) {
					t.Errorf("%s: got %+v, then %+v", test.mode, first, again)
				}

				s = newService(t)
				s.serve(protect(s.guard, func(context.Context) {}, test.options...))
				s.want(test.mode+", in time", s.post("a", "k", `{}`), http.StatusOK, false)
				s.want(test.mode+", in time, again", s.post("a", "k", `{}`), http.StatusOK, true)
				if log := s.log.String(); !strings.Contains(log, "the handler wrote no answer") || s.bypasses != 0 {
					t.Errorf("%s: of a handler that wrote no answer the log tells %s", test.mode, log)
				}
			}
		})
	}
}

// TestStatusAloneUnderGin: c.Status writes nothing by itself, and is an answer all the same.
func TestStatusAloneUnderGin(t *testing.T) {
	t.Parallel()
	s := newService(t)
	engine := gin.New()
	viagin.Protector{}.Handle(&engine.RouterGroup, http.MethodPost, colonPath,
		func(c *gin.Context) { c.Status(http.StatusNoContent) }, s.guard, onceward.Transactional())
	s.serve(engine)
	s.want("first", s.post("a", "k", `{}`), http.StatusNoContent, false)
	s.want("replay", s.post("a", "k", `{}`), http.StatusNoContent, true)
}

// TestRecipesTellNamesAndRoutes: a recipe for a router that the guard cannot see tells it the names when the routes are
// built, so that those of a poller are checked, and finds routes that change state and are not protected.
func TestRecipesTellNamesAndRoutes(t *testing.T) {
	t.Parallel()
	audits := map[string]func(router http.Handler, exempt ...string) error{ // as if nothing else were protected
		"gin": func(router http.Handler, exempt ...string) error {
			engine := router.(*gin.Engine)
			engine.POST("/login", func(*gin.Context) {})
			engine.GET("/", func(*gin.Context) {})
			return viagin.Protector{}.Audit(engine, exempt...)
		},
		"echo4": func(router http.Handler, exempt ...string) error {
			echo := router.(*echov4.Echo)
			echo.POST("/login", echov4.NotFoundHandler)
			echo.GET("/", echov4.NotFoundHandler)
			return viaecho4.Protector{}.Audit(echo, exempt...)
		},
		"echo5": func(router http.Handler, exempt ...string) error {
			echo := router.(*echov5.Echo)
			handler := func(*echov5.Context) error { return nil }
			if _, err := echo.AddRoute(echov5.Route{Method: http.MethodPost, Path: "/login", Handler: handler}); err != nil {
				return err
			}
			echo.GET("/", handler)
			return viaecho5.Protector{}.Audit(echo, exempt...)
		},
		"gorilla": func(router http.Handler, exempt ...string) error {
			routes := router.(*mux.Router)
			routes.HandleFunc("/login", http.NotFound).Methods(http.MethodPost)
			routes.HandleFunc("/", http.NotFound).Methods(http.MethodGet)
			return viagorilla.Audit(routes, exempt...)
		},
	}
	for _, r := range recipes {
		audit := audits[r.dir]
		if audit == nil {
			continue
		}
		t.Run(r.dir, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			router := r.router(s) // whose own audit passes
			s.must(s.guard.CheckOperations(r.operation))
			if err := s.guard.CheckOperations("POST /payment"); !errors.Is(err, onceward.ErrMisconfigured) {
				t.Errorf("a name that no route has is %v, want ErrMisconfigured", err)
			}
			exempt := []string{r.operation}
			if r.dir == "gorilla" {
				exempt = nil // its router knows which handlers are protected
			}
			if err := audit(router, exempt...); err == nil || !strings.Contains(err.Error(), "not protected: POST /login:") {
				t.Errorf("a route that is not protected is %v", err)
			}
		})
	}
}
