package routers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/onceward/onceward"
	oncewardecho "github.com/onceward/onceward/adapter/echo5"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestEcho5(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "echo v5", Operation: colonOperation, Serve: serveEcho5, State: stateEcho5, Hooks: hooksEcho5,
		Envelope: envelopeEcho5, Deadline: deadlineEcho5,
		Features: withErrors(suite.HTTPFeatures, true),
		Wrong: []suite.Wrong{
			{Name: "its own writer", Serve: wrongWriterEcho5},
			{Name: "errors answered late", Serve: wrongErrorsEcho5, Mistake: suite.AnsweredLate},
		},
	})
}

func newRouterEcho5() *echo.Echo {
	router := echo.New()
	router.Logger = quiet
	router.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}))
	return router
}

func serveEcho5(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	accounts := router.Group("/accounts/:account")
	accounts.POST("/payments", echo5Handler(work), oncewardecho.Middleware(guard, options...))
	accounts.POST("/refunds", echo5Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// deadlineEcho5 serves behind a middleware that sets a deadline.
func deadlineEcho5(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			ctx, cancel := context.WithTimeout(c.Request().Context(), suite.FrontDeadline)
			defer cancel()
			c.SetRequest(c.Request().WithContext(ctx))
			return next(c)
		}
	})
	router.POST("/accounts/:account/payments", echo5Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// envelopeEcho5 serves with an error handler that answers with 200.
func envelopeEcho5(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	router.HTTPErrorHandler = func(c *echo.Context, err error) {
		_ = c.JSON(http.StatusOK, map[string]string{"error": err.Error()}) // the answer is in the guard's memory
	}
	router.POST("/accounts/:account/payments", echo5Handler(work), oncewardecho.Middleware(guard, options...))
	return suite.ServeHTTP(t, router)
}

// stateEcho5 serves a handler that replies with what echo says, and then changes it.
func stateEcho5(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Set("user", "alice")
			c.Response().Header().Set("X-Served-By", "a middleware")
			return next(c)
		}
	})
	handler := func(c *echo.Context) error {
		w, err := echo.UnwrapResponse(c.Response())
		if err != nil {
			return err
		}
		facts := fmt.Sprintf("committed %t, status %d, size %d, header %v, route %s, account %s, values %v, user %v, path %s",
			w.Committed, w.Status, w.Size, w.Header(), c.Path(), c.Param("account"), c.PathValues(), c.Get("user"),
			c.Request().URL)
		c.SetPath("/another")
		c.SetPathValues(echo.PathValues{{Name: "account", Value: c.Param("account") + "!"}, {Name: "number", Value: "8"}})
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

// hooksEcho5 serves behind a middleware that registers a hook.
func hooksEcho5(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			response, err := echo.UnwrapResponse(c.Response())
			if err != nil {
				return err
			}
			response.Before(func() { c.Response().Header().Set(suite.HookHeader, "before") })
			return next(c)
		}
	})
	handler := func(c *echo.Context) error {
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

// echo5Handler is the work as echo has it: a refusal or a failure is an error, where no header goes with it.
func echo5Handler(work suite.Work) echo.HandlerFunc {
	return func(c *echo.Context) error {
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

// wrongWriterEcho5 lets the handler write to echo's own writer.
func wrongWriterEcho5(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	router.POST("/accounts/:account/payments", echo5Handler(work), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
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

// wrongErrorsEcho5 lets echo answer an error when the guard has ended.
func wrongErrorsEcho5(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	router := newRouterEcho5()
	options = append(options, onceward.OperationName(colonOperation))
	router.POST("/accounts/:account/payments", func(c *echo.Context) error {
		work(c.Request().Context(), suite.Payment{})
		return echo.ErrBadRequest
	}, echo.WrapMiddleware(guard.Middleware(options...)))
	return suite.ServeHTTP(t, router)
}

// TestAuditOfEcho5: the guard learns its names, and a route that is not protected is found.
func TestAuditOfEcho5(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	hooked := 0
	router.OnAddRoute = func(echo.Route) error { hooked++; return nil }
	routes := oncewardecho.Watch(router)
	created := func(c *echo.Context) error { return c.NoContent(http.StatusCreated) }
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
		return func(c *echo.Context) error {
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

// TestEcho5Scope: the scope may come from what a middleware of echo has set.
func TestEcho5Scope(t *testing.T) {
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
		return func(c *echo.Context) error {
			c.Set("tenant", c.Request().Header.Get("Authorization"))
			return next(c)
		}
	})
	router.POST("/accounts/:account/payments", func(c *echo.Context) error {
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

// TestEcho5ErrorsOfUnprotectedRequests: echo answers them, and what is in front of the guard sees them.
func TestEcho5ErrorsOfUnprotectedRequests(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	var seen []error
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			err := next(c)
			seen = append(seen, err)
			return err
		}
	})
	router.POST("/accounts/:account/payments", func(*echo.Context) error { return echo.ErrForbidden },
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

// TestEcho5LeftBehind: what a run that was undone has left behind does not reach into the next one.
func TestEcho5LeftBehind(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(suite.NewUndoingStore(t), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var left []http.ResponseWriter
	router := newRouterEcho5()
	router.POST("/accounts/:account/payments", func(c *echo.Context) error {
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

// TestEcho5TemporaryFiles: those of a form in a request without protection are removed too.
func TestEcho5TemporaryFiles(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	router := echo.New()
	router.POST("/accounts/:account/payments", func(c *echo.Context) error {
		return c.String(http.StatusOK, suite.TemporaryFile(t, c.Request()))
	}, oncewardecho.Middleware(guard, onceward.Reserved(onceward.FailureUnknown), onceward.KeyOptional()))
	suite.WantFilesRemoved(t, router)
}
