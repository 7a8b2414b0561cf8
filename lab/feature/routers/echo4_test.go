package routers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/onceward/onceward"
	oncewardecho "github.com/onceward/onceward/adapter/echo4"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestEcho4(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "echo v4", Operation: colonOperation, Serve: serveEcho4, State: stateEcho4, Hooks: hooksEcho4,
		Envelope: envelopeEcho4, Deadline: deadlineEcho4,
		Features: withErrors(suite.HTTPFeatures, true),
		Wrong: []suite.Wrong{
			{Name: "its own writer", Serve: wrongWriterEcho4},
			{Name: "errors answered late", Serve: wrongErrorsEcho4, Mistake: suite.AnsweredLate},
		},
	})
}

func newRouterEcho4() *echo.Echo {
	router := echo.New()
	router.Logger.SetOutput(io.Discard)
	router.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}))
	return router
}

func serveEcho4(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	accounts := router.Group("/accounts/:account")
	accounts.POST("/payments", echo4Handler(work), oncewardecho.Middleware(guard, options...))
	accounts.POST("/refunds", echo4Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// deadlineEcho4 serves behind a middleware that sets a deadline.
func deadlineEcho4(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			ctx, cancel := context.WithTimeout(c.Request().Context(), suite.FrontDeadline)
			defer cancel()
			c.SetRequest(c.Request().WithContext(ctx))
			return next(c)
		}
	})
	router.POST("/accounts/:account/payments", echo4Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// envelopeEcho4 serves with an error handler that answers with 200.
func envelopeEcho4(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	router.HTTPErrorHandler = func(err error, c echo.Context) {
		_ = c.JSON(http.StatusOK, echo.Map{"error": err.Error()}) // the answer is in the guard's memory
	}
	router.POST("/accounts/:account/payments", echo4Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// stateEcho4 serves a handler that replies with what echo says, and then changes it.
func stateEcho4(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "alice")
			c.Response().Header().Set("X-Served-By", "a middleware")
			return next(c)
		}
	})
	handler := func(c echo.Context) error {
		w := c.Response()
		facts := fmt.Sprintf("committed %t, status %d, size %d, header %v, route %s, account %s, names %v, values %v, "+
			"user %v, note %v, path %s", w.Committed, w.Status, w.Size, w.Header(), c.Path(), c.Param("account"),
			c.ParamNames(), c.ParamValues(), c.Get("user"), c.Get("note"), c.Request().URL)
		c.Set("user", "mallory")
		c.Set("note", "was here")
		c.SetPath("/another")
		c.SetParamNames("account", "number")
		c.SetParamValues(c.Param("account")+"!", "8")
		w.Status = http.StatusTeapot
		w.Header().Set("X-Facts", "known")
		return c.String(http.StatusCreated, fmt.Sprintf("%s; committed %t, status %d", facts, w.Committed, w.Status))
	}
	if guard != nil {
		handler = oncewardecho.Middleware(guard, options...)(handler)
	}
	router.POST("/accounts/:account/payments", handler)
	return suite.ServeHTTP(t, router)
}

// hooksEcho4 serves behind a middleware that registers a hook.
func hooksEcho4(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Before(func() { c.Response().Header().Set(suite.HookHeader, "before") })
			return next(c)
		}
	})
	handler := func(c echo.Context) error {
		var payment suite.Payment
		if err := c.Bind(&payment); err != nil {
			return err
		}
		suite.WriteAs(payment.Memo, c.Response())
		return nil
	}
	if guard != nil {
		handler = oncewardecho.Middleware(guard, options...)(handler)
	}
	router.POST("/accounts/:account/payments", handler)
	return suite.ServeHTTP(t, router)
}

// echo4Handler is the work as echo has it: a refusal or a failure is an error, where no header goes with it.
func echo4Handler(work suite.Work) echo.HandlerFunc {
	return func(c echo.Context) error {
		var payment suite.Payment
		if err := c.Bind(&payment); err != nil {
			return echo.NewHTTPError(http.StatusTeapot, err.Error())
		}
		if c.Param("account") != payment.Account {
			return echo.NewHTTPError(http.StatusTeapot, suite.ErrOtherAccount.Error())
		}
		reply := work(c.Request().Context(), payment)
		for name, value := range reply.Header {
			c.Response().Header().Set(name, value)
		}
		switch {
		case reply.Err != nil:
			return errors.Join(c.String(reply.Status, reply.Body), reply.Err)
		case reply.Status == 0:
			return nil
		case reply.Status >= http.StatusBadRequest:
			return echo.NewHTTPError(reply.Status, reply.Body)
		case reply.Body == "":
			return c.NoContent(reply.Status)
		case reply.Header["Content-Type"] != "":
			return c.Blob(reply.Status, reply.Header["Content-Type"], []byte(reply.Body))
		default:
			return c.String(reply.Status, reply.Body)
		}
	}
}

// wrongWriterEcho4 lets the handler write to echo's own writer.
func wrongWriterEcho4(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	router.POST("/accounts/:account/payments", echo4Handler(work), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			c.Request().Pattern = c.Path()
			guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				err = next(c)
			}, options...).ServeHTTP(c.Response(), c.Request())
			return err
		}
	})
	return suite.ServeHTTP(t, router)
}

// wrongErrorsEcho4 lets echo answer an error when the guard has ended.
func wrongErrorsEcho4(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho4()
	options = append(options, onceward.OperationName(colonOperation))
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		work(c.Request().Context(), suite.Payment{})
		return echo.ErrBadRequest
	}, echo.WrapMiddleware(guard.Middleware(options...)))
	return suite.ServeHTTP(t, router)
}

// TestAuditOfEcho4: the guard learns its names, and a route that is not protected is found.
func TestAuditOfEcho4(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	hooked := 0
	router.OnAddRouteHandler = func(string, echo.Route, echo.HandlerFunc, []echo.MiddlewareFunc) { hooked++ }
	routes := oncewardecho.Watch(router)
	created := func(c echo.Context) error { return c.NoContent(http.StatusCreated) }
	reserved := onceward.Reserved(onceward.FailureUnknown)
	accounts := router.Group("/accounts/:account", oncewardecho.Middleware(guard, reserved))
	accounts.POST("/payments", created)
	accounts.POST("/bookings", created)
	router.POST("/refunds", created, oncewardecho.Middleware(guard, reserved))
	router.GET("/", created)
	if err := guard.CheckOperations("POST /payment"); err != nil {
		t.Errorf("before the audit no name is certain, but: %v", err)
	}
	if err := routes.Audit("POST /other"); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations(colonOperation, "POST /accounts/:account/bookings", "POST /refunds"); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations("POST /payment"); !errors.Is(err, onceward.ErrMisconfigured) {
		t.Errorf("a name that no route has is %v, want ErrMisconfigured", err)
	}
	router.POST("/login", created, func(next echo.HandlerFunc) echo.HandlerFunc { return next })
	accounts.PUT("/vain", created)
	router.POST("/maybe", created, func(next echo.HandlerFunc) echo.HandlerFunc {
		protected := oncewardecho.Middleware(guard, reserved)(next)
		return func(c echo.Context) error {
			if c.QueryParam("protect") == "" {
				return next(c)
			}
			return protected(c)
		}
	})
	err := routes.Audit()
	if err == nil ||
		!strings.Contains(err.Error(), "not protected: POST /login, PUT /accounts/:account/vain, POST /maybe:") {
		t.Errorf("routes that are not protected are %v", err)
	}
	if err := routes.Audit("POST /login", "PUT /accounts/:account/vain", "POST /maybe"); err != nil {
		t.Errorf("routes that are exempt are %v", err)
	}
	if hooked == 0 {
		t.Error("the hook that was there before is not called")
	}
}

// TestEcho4Scope: the scope may come from what a middleware of echo has set.
func TestEcho4Scope(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, func(r *http.Request) (string, error) {
		c, ok := oncewardecho.FromRequest(r)
		if !ok {
			return "", errors.New("no context of echo")
		}
		return c.Get("tenant").(string), nil
	})
	router := echo.New()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("tenant", c.Request().Header.Get("Authorization"))
			return next(c)
		}
	})
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		return c.String(http.StatusCreated, onceward.FromContext(c.Request().Context()).Scope())
	}, oncewardecho.Middleware(guard, onceward.Reserved(onceward.FailureUnknown)))
	caller := suite.ServeHTTP(t, router)
	request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
	if got, err := caller.Call(t.Context(), request); err != nil || got.Body != "Bearer alice" {
		t.Errorf("got %+v, error %v", got, err)
	}
	if _, ok := oncewardecho.FromRequest(new(http.Request)); ok {
		t.Error("a request that did not come through echo has a context of it")
	}
}

// TestEcho4ErrorsOfUnprotectedRequests: echo answers them, and what is in front of the guard sees them.
func TestEcho4ErrorsOfUnprotectedRequests(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	var seen []error
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			seen = append(seen, err)
			return err
		}
	})
	router.POST("/accounts/:account/payments", func(echo.Context) error { return echo.ErrForbidden },
		oncewardecho.Middleware(guard, onceward.Reserved(onceward.FailureUnknown), onceward.KeyOptional()))
	caller := suite.ServeHTTP(t, router)
	for _, key := range []string{"", "k"} {
		request := suite.Request{Key: key, Tenant: "alice", Payment: suite.Payment{Account: "a"}}
		if got, err := caller.Call(t.Context(), request); err != nil || got.Status != http.StatusForbidden {
			t.Errorf("key %q: got %+v, error %v", key, got, err)
		}
	}
	if len(seen) != 2 || !errors.Is(seen[0], echo.ErrForbidden) || seen[1] != nil {
		t.Errorf("in front of the guard the errors are %v, want the unprotected one alone", seen)
	}
}

// TestEcho4LeftBehind: what a run that was undone has left behind does not reach into the next one.
func TestEcho4LeftBehind(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(suite.NewUndoingStore(t), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var left []http.ResponseWriter
	router := newRouterEcho4()
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		for _, w := range left {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("left behind"))
		}
		left = append(left, c.Response())
		return c.String(http.StatusCreated, fmt.Sprint("run ", len(left)))
	}, oncewardecho.Middleware(guard, onceward.Transactional()))
	caller := suite.ServeHTTP(t, router)
	for _, replayed := range []bool{false, true} {
		request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
		got, err := caller.Call(t.Context(), request)
		if err != nil || got.Status != http.StatusCreated || got.Body != "run 2" || got.Replayed != replayed {
			t.Errorf("got %+v, error %v", got, err)
		}
	}
}

// TestEcho4ContextType: a handler gets the context of the application's own type that a middleware in front has made.
func TestEcho4ContextType(t *testing.T) {
	t.Parallel()
	type own struct{ echo.Context }
	router := newRouterEcho4()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return next(&own{c}) }
	})
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		return c.String(http.StatusCreated, fmt.Sprintf("%T", c.(*own).Context))
	}, oncewardecho.Middleware(guardOfScope(t, onceward.SingleScope("shop")), reserved))
	if got := call(t, suite.ServeHTTP(t, router), "k"); got.Status != http.StatusCreated || got.Body != "*echo.context" {
		t.Errorf("got %+v", got)
	}
}

// TestEcho4TemporaryFiles: those of a form in a request without protection are removed too.
func TestEcho4TemporaryFiles(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	router.POST("/accounts/:account/payments", func(c echo.Context) error {
		return c.String(http.StatusOK, suite.TemporaryFile(t, c.Request()))
	}, oncewardecho.Middleware(guard, onceward.Reserved(onceward.FailureUnknown), onceward.KeyOptional()))
	suite.WantFilesRemoved(t, router)
}

// TestHosts: the same path of another host is another operation.
func TestHosts(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	routes := oncewardecho.Watch(router)
	protect := oncewardecho.Middleware(guard, onceward.Reserved(onceward.FailureUnknown))
	for _, host := range []string{"one.example", "two.example"} {
		router.Host(host).POST("/payments", func(c echo.Context) error { return c.String(http.StatusOK, host) }, protect)
	}
	router.POST("/payments", func(c echo.Context) error { return c.String(http.StatusOK, "any") }, protect)
	if err := routes.Audit(); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations("POST one.example/payments", "POST /payments"); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"k", "l"} {
		for i, host := range []string{"one.example", "two.example", "three.example"} {
			request := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
			request.Host = host
			request.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			router.ServeHTTP(w, request)
			if want := http.StatusUnprocessableEntity; i > 0 && w.Code != want || i == 0 && w.Body.String() != host {
				t.Errorf("%s: got %d %s", host, w.Code, w.Body)
			}
		}
	}
}
