package routers_test

import (
	"fmt"
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
	"github.com/onceward/onceward/internal/racing"
	"github.com/onceward/onceward/store/memory"
)

const (
	path         = "/accounts/:account/payments"
	target       = "/accounts/a/payments"
	smallPayment = `{"account":"a","amount":7}`
	kind         = "application/json"
	location     = "/payments/7"
)

var smallAnswer = []byte(`{"id":"7"}`)

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
			c.Data(http.StatusCreated, kind, smallAnswer)
		}
		if guard != nil {
			handler = oncewardgin.Handler(guard, handler, options...)
		}
		gin.SetMode(gin.ReleaseMode)
		engine := gin.New()
		engine.ContextWithFallback = true // without it, gin's context gets a map with the context of the attempt
		engine.POST(path, handler)
		return over(engine)
	},
	"echo v4": func(guard *onceward.Guard, idle bool, options ...onceward.Option) send {
		handler := func(c echov4.Context) error {
			if idle {
				return nil
			}
			c.Response().Header().Set("Location", location)
			return c.Blob(http.StatusCreated, kind, smallAnswer)
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
			return c.Blob(http.StatusCreated, kind, smallAnswer)
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
			return c.Status(http.StatusCreated).Send(smallAnswer)
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
		_, _ = w.Write(smallAnswer)
	})
	if guard != nil {
		handler = guard.Handler(handler, options...)
	}
	router := http.NewServeMux()
	router.Handle("POST /accounts/{account}/payments", handler)
	return over(router)
}

// noWriter is a response writer that allocates nothing of its own.
type noWriter struct{ header http.Header }

func (w *noWriter) Header() http.Header         { return w.header }
func (w *noWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *noWriter) WriteHeader(int)             {}
func (w *noWriter) Flush()                      {}

// over sends to a handler of net/http.
func over(h http.Handler) send {
	return func(key string) {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(smallPayment))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Idempotency-Key", key)
		h.ServeHTTP(&noWriter{header: make(http.Header)}, r)
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
		c.Request.SetBodyString(smallPayment)
		h(&c)
	}
}

// cost is how many allocations protection adds to a request.
type cost struct {
	first        float64 // to one that is executed
	replay       float64 // to one that is replayed, beside a bare handler that answers
	replayToIdle float64 // the same, beside one that does nothing: a replay does not run the handler
}

// String shows the cost in the message of a test.
func (c cost) String() string {
	return fmt.Sprintf("first %.0f, replay %.0f, replay beside an idle handler %.0f", c.first, c.replay, c.replayToIdle)
}

// within reports whether the cost is at most that of another and so many more.
func (c cost) within(other cost, more float64) bool {
	return c.first <= other.first+more && c.replay <= other.replay+more && c.replayToIdle <= other.replayToIdle+more
}

func costOf(t *testing.T, f framework) (c cost) {
	t.Helper()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
		Logger: quiet,
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
	executed := testing.AllocsPerRun(runs, func() { protected(keys[next]); next++ })
	replayed := testing.AllocsPerRun(runs, func() { protected(keys[0]) })
	answered := testing.AllocsPerRun(runs, func() { bare(keys[0]) })
	nothing := testing.AllocsPerRun(runs, func() { idle(keys[0]) })
	return cost{first: executed - answered, replay: replayed - answered, replayToIdle: replayed - nothing}
}

// TestAllocations: an adapter allocates beside its framework at most four times more than the middleware of net/http
// does beside net/http. Allocations of other tests would count, so it is not parallel, and the race detector adds some
// of its own.
func TestAllocations(t *testing.T) {
	const more = 4
	base := costOf(t, netHTTP)
	t.Logf("%-8s %s", "net/http", base)
	for name, f := range frameworks {
		got := costOf(t, f)
		t.Logf("%-8s %s", name, got)
		if !got.within(base, more) && !racing.Enabled {
			t.Errorf("%s: protection allocates %s; over net/http %s, and %d more are allowed", name, got, base, more)
		}
	}
}
