//go:build !race

// Package allocs holds what an adapter may cost: beside its framework it allocates at most four times more than the
// middleware of net/http does beside net/http.
package allocs

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"github.com/valyala/fasthttp"

	"github.com/onceward/onceward"
	oncewardecho4 "github.com/onceward/onceward/adapter/echo4"
	oncewardecho5 "github.com/onceward/onceward/adapter/echo5"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
	"github.com/onceward/onceward/store/memory"
)

const (
	path     = "/accounts/:account/payments"
	target   = "/accounts/a/payments"
	payment  = `{"account":"a","amount":7}`
	kind     = "application/json"
	location = "/payments/7"
)

var answer = []byte(`{"id":"7"}`)

// send serves one request under a key.
type send func(key string)

// framework builds a service, with a guard or, if that is nil, without one. If it is idle, its handler does nothing.
type framework func(guard *onceward.Guard, idle bool, options ...onceward.Option) send

var frameworks = map[string]framework{
	"gin": func(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
		handler := func(c *gin.Context) {
			if idle {
				return
			}
			c.Header("Location", location)
			c.Data(http.StatusCreated, kind, answer)
		}
		if guard != nil {
			handler = oncewardgin.Handler(guard, handler, options...)
		}
		gin.SetMode(gin.ReleaseMode)
		engine := gin.New()
		engine.POST(path, handler)
		return over(engine)
	},
	"echo v4": func(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
		handler := func(c echov4.Context) error {
			if idle {
				return nil
			}
			c.Response().Header().Set("Location", location)
			return c.Blob(http.StatusCreated, kind, answer)
		}
		router := echov4.New()
		if guard != nil {
			router.POST(path, handler, oncewardecho4.Middleware(guard, options...))
		} else {
			router.POST(path, handler)
		}
		return over(router)
	},
	"echo v5": func(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
		handler := func(c *echov5.Context) error {
			if idle {
				return nil
			}
			c.Response().Header().Set("Location", location)
			return c.Blob(http.StatusCreated, kind, answer)
		}
		router := echov5.New()
		if guard != nil {
			router.POST(path, handler, oncewardecho5.Middleware(guard, options...))
		} else {
			router.POST(path, handler)
		}
		return over(router)
	},
	"fiber": func(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
		handler := func(c fiber.Ctx) error {
			if idle {
				return nil
			}
			c.Set("Location", location)
			c.Set("Content-Type", kind)
			return c.Status(http.StatusCreated).Send(answer)
		}
		if guard != nil {
			handler = oncewardfiber.Handler(guard, handler, options...)
		}
		app := fiber.New()
		app.Post(path, handler)
		return overFasthttp(app.Handler())
	},
}

// netHTTP is what the others are compared with.
func netHTTP(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if idle {
			return
		}
		w.Header().Set("Location", location)
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer)
	})
	if guard != nil {
		handler = guard.Handler(handler, options...)
	}
	router := http.NewServeMux()
	router.Handle("POST /accounts/{account}/payments", handler)
	return over(router)
}

// silent is a response writer that allocates nothing of its own.
type silent struct{ header http.Header }

func (w *silent) Header() http.Header         { return w.header }
func (w *silent) Write(b []byte) (int, error) { return len(b), nil }
func (w *silent) WriteHeader(int)             {}
func (w *silent) Flush()                      {}

// over sends to a handler of net/http.
func over(h http.Handler) send {
	return func(key string) {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(payment))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Idempotency-Key", key)
		h.ServeHTTP(&silent{header: make(http.Header)}, r)
	}
}

// overFasthttp sends to a handler of fasthttp, which has the memory of a connection for its requests.
func overFasthttp(h fasthttp.RequestHandler) send {
	var c fasthttp.RequestCtx
	c.Init(new(fasthttp.Request), nil, nil)
	return func(key string) {
		c.Request.Reset()
		c.Response.Reset()
		c.ResetUserValues()
		c.Request.Header.SetMethod(http.MethodPost)
		c.Request.SetRequestURI(target)
		c.Request.Header.SetHost("example.com")
		c.Request.Header.SetContentType(kind)
		c.Request.Header.Set("Idempotency-Key", key)
		c.Request.SetBodyString(payment)
		h(&c)
	}
}

// costs are the allocations that protection adds to a request: to one that is executed, and to one that is replayed,
// which is compared with one to a handler that does nothing.
func costs(t *testing.T, f framework) (first, replay float64) {
	t.Helper()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	const runs = 1000
	keys := make([]string, runs+1)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", 1000+i)
	}
	protected, bare, idle := f(guard, false, onceward.Reserved(onceward.FailureStore)), f(nil, false), f(nil, true)
	next := 0
	first = testing.AllocsPerRun(runs, func() { protected(keys[next]); next++ })
	first -= testing.AllocsPerRun(runs, func() { bare(keys[0]) })
	replay = testing.AllocsPerRun(runs, func() { protected(keys[0]) })
	replay -= testing.AllocsPerRun(runs, func() { idle(keys[0]) })
	return first, replay
}

func TestAllocations(t *testing.T) {
	const more = 4
	first, replay := costs(t, netHTTP)
	t.Logf("%-8s first %2.0f, replay %2.0f", "net/http", first, replay)
	for name, f := range frameworks {
		gotFirst, gotReplay := costs(t, f)
		t.Logf("%-8s first %2.0f, replay %2.0f", name, gotFirst, gotReplay)
		if gotFirst > first+more || gotReplay > replay+more {
			t.Errorf("%s: protection allocates %v times at first and %v for a replay; over net/http it is %v and %v",
				name, gotFirst, gotReplay, first, replay)
		}
	}
}
