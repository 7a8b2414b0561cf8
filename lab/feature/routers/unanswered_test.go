package routers_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/onceward/onceward"
	oncewardecho4 "github.com/onceward/onceward/adapter/echo4"
	oncewardecho5 "github.com/onceward/onceward/adapter/echo5"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
)

// TestUnansweredErrors: a handler reports an error to its framework, and nothing answers the error before the guard has
// judged the answer. The handler failed: no empty 200 is stored.
func TestUnansweredErrors(t *testing.T) {
	failure := errors.New("the second statement failed")
	overHTTP := func(t *testing.T, h http.Handler) func(*http.Request) *http.Response {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return func(r *http.Request) *http.Response {
			r.RequestURI = ""
			r.URL.Scheme, r.URL.Host = "http", server.Listener.Addr().String()
			answer, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
	}
	for name, serve := range map[string]func(*testing.T, *onceward.Guard, *int) func(*http.Request) *http.Response{
		"gin": func(t *testing.T, guard *onceward.Guard, runs *int) func(*http.Request) *http.Response {
			engine := newEngine()
			engine.Use(func(c *gin.Context) {
				c.Next()
				if c.Errors.Last() != nil && !c.Writer.Written() {
					c.Status(http.StatusInternalServerError)
				}
			})
			engine.POST("/p", oncewardgin.Handler(guard, func(c *gin.Context) { *runs++; _ = c.Error(failure) }, reserved))
			return overHTTP(t, engine)
		},
		"gin, a value that cannot be encoded": func(
			t *testing.T, guard *onceward.Guard, runs *int,
		) func(*http.Request) *http.Response {
			engine := newEngine()
			engine.POST("/p", oncewardgin.Handler(guard, func(c *gin.Context) {
				*runs++
				c.JSON(http.StatusCreated, func() {})
			}, reserved))
			return overHTTP(t, engine)
		},
		"echo4": func(t *testing.T, guard *onceward.Guard, runs *int) func(*http.Request) *http.Response {
			e := echo4.New()
			e.HTTPErrorHandler = func(error, echo4.Context) {}
			e.POST("/p", func(echo4.Context) error { *runs++; return failure }, oncewardecho4.Middleware(guard, reserved))
			return overHTTP(t, e)
		},
		"echo5": func(t *testing.T, guard *onceward.Guard, runs *int) func(*http.Request) *http.Response {
			e := echo5.New()
			e.HTTPErrorHandler = func(*echo5.Context, error) {}
			e.POST("/p", func(*echo5.Context) error { *runs++; return failure }, oncewardecho5.Middleware(guard, reserved))
			return overHTTP(t, e)
		},
		"fiber": func(t *testing.T, guard *onceward.Guard, runs *int) func(*http.Request) *http.Response {
			app := fiber.New(fiber.Config{ErrorHandler: func(fiber.Ctx, error) error { return nil }})
			app.Post("/p", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
				*runs++
				c.Status(http.StatusCreated)
				_, _ = c.WriteString("half")
				return failure
			}, reserved))
			return func(r *http.Request) *http.Response {
				answer, err := app.Test(r)
				if err != nil {
					t.Fatal(err)
				}
				return answer
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard := guardOfScope(t, onceward.SingleScope("shop"))
			runs := 0
			send := serve(t, guard, &runs)
			for _, want := range []int{http.StatusInternalServerError, http.StatusConflict} {
				r := httptest.NewRequest(http.MethodPost, "/p", strings.NewReader(`{"a":1}`))
				r.Header.Set("Idempotency-Key", "k")
				answer := send(r)
				_ = answer.Body.Close()
				if answer.StatusCode != want || answer.Header.Get("Idempotent-Replayed") != "" {
					t.Errorf("E5: the answer is %d, replayed %q, want %d", answer.StatusCode, answer.Header.Get("Idempotent-Replayed"), want)
				}
			}
			if runs != 1 {
				t.Errorf("I1: the handler ran %d times, want 1", runs)
			}
		})
	}
}

// TestErrorsThatEchoHasAnswered: a middleware behind the guard answers the error of the handler, as RequestLogger does if
// HandleError is set, or the handler answers the error, and returns it too. A hint that is sent before changes nothing.
func TestErrorsThatEchoHasAnswered(t *testing.T) {
	for name, route := range map[string]func(*onceward.Guard, *int) http.Handler{
		"echo4": func(guard *onceward.Guard, runs *int) http.Handler {
			e := echo4.New()
			answers := func(next echo4.HandlerFunc) echo4.HandlerFunc {
				return func(c echo4.Context) error {
					err := next(c)
					c.Error(err)
					return err
				}
			}
			e.POST("/own", func(c echo4.Context) error {
				*runs++
				if err := c.String(http.StatusPaymentRequired, "no funds"); err != nil {
					return err
				}
				return errors.New("the account has no funds")
			}, oncewardecho4.Middleware(guard, reserved))
			e.POST("/p", func(c echo4.Context) error {
				*runs++
				c.Response().Writer.WriteHeader(http.StatusEarlyHints)
				return echo4.NewHTTPError(http.StatusPaymentRequired, "no funds")
			}, oncewardecho4.Middleware(guard, reserved), answers)
			return e
		},
		"echo5": func(guard *onceward.Guard, runs *int) http.Handler {
			e := echo5.New()
			answers := func(next echo5.HandlerFunc) echo5.HandlerFunc {
				return func(c *echo5.Context) error {
					err := next(c)
					e.HTTPErrorHandler(c, err)
					return err
				}
			}
			e.POST("/own", func(c *echo5.Context) error {
				*runs++
				if err := c.String(http.StatusPaymentRequired, "no funds"); err != nil {
					return err
				}
				return errors.New("the account has no funds")
			}, oncewardecho5.Middleware(guard, reserved))
			e.POST("/p", func(c *echo5.Context) error {
				*runs++
				response, err := echo5.UnwrapResponse(c.Response())
				if err != nil {
					return err
				}
				response.ResponseWriter.WriteHeader(http.StatusEarlyHints)
				return echo5.NewHTTPError(http.StatusPaymentRequired, "no funds")
			}, oncewardecho5.Middleware(guard, reserved), answers)
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard := guardOfScope(t, onceward.SingleScope("shop"))
			runs := 0
			server := httptest.NewServer(route(guard, &runs))
			defer server.Close()
			for _, path := range []string{"/p", "/own"} {
				for _, replayed := range []string{"", "true"} {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(`{"a":1}`))
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("Idempotency-Key", path)
					answer, err := server.Client().Do(r)
					if err != nil {
						t.Fatal(err)
					}
					_ = answer.Body.Close()
					if answer.StatusCode != http.StatusPaymentRequired || answer.Header.Get("Idempotent-Replayed") != replayed {
						t.Errorf("E8: the answer of %s is %d, replayed %q, want 402, replayed %q",
							path, answer.StatusCode, answer.Header.Get("Idempotent-Replayed"), replayed)
					}
				}
			}
			if runs != 2 {
				t.Errorf("I1: the handlers ran %d times, want 2", runs)
			}
		})
	}
}

// TestFiberAnswersLikeItsErrorHandler: an answer that the error handler makes again, byte for byte, is an answer.
func TestFiberAnswersLikeItsErrorHandler(t *testing.T) {
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app := fiber.New()
	app.Post("/p", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		_ = c.Status(http.StatusNotFound).SendString("Not Found") // it always returns nil
		return fiber.ErrNotFound
	}, reserved))
	for _, replayed := range []string{"", "true"} {
		r := httptest.NewRequest(http.MethodPost, "/p", strings.NewReader(`{"a":1}`))
		r.Header.Set("Idempotency-Key", "k")
		answer, err := app.Test(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Idempotent-Replayed"); answer.StatusCode != http.StatusNotFound || got != replayed {
			t.Errorf("E5: the answer is %d, replayed %q, want 404, replayed %q", answer.StatusCode, got, replayed)
		}
	}
}
