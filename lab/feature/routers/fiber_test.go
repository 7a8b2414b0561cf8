package routers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	recoverer "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"

	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/lab/feature/suite"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

var reserved = onceward.Reserved(onceward.FailureUnknown)

func TestFiber(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "fiber", Operation: colonOperation, Serve: serveFiber, State: stateFiber,
		Envelope: envelopeFiber, Deadline: deadlineFiber, OwnContext: ownContextFiber, Features: withErrors(suite.HTTPFeatures, false),
		Wrong: []suite.Wrong{
			{Name: "the adaptor of fiber", Serve: wrongAdaptor, Mistake: suite.NoAnswer},
			{Name: "its own response", Serve: wrongResponse, Mistake: suite.NoAnswer},
			{Name: "a chain that runs once", Serve: wrongNextFiber, Mistake: suite.NotRerun},
		},
	})
}

// TestStreamedBodies: the table holds also where the bodies of requests are not read in advance.
func TestStreamedBodies(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "fiber", Operation: colonOperation, Serve: serveStreams, Features: suite.HTTPFeatures,
	})
}

func serveFiber(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return serveWith(t, fiber.Config{}, guard, work, options)
}

// deadlineFiber serves behind a middleware that sets a deadline.
func deadlineFiber(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		ctx, cancel := context.WithTimeout(c.Context(), suite.FrontDeadline)
		defer cancel()
		c.SetContext(ctx)
		return c.Next()
	})
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, fiberHandler(work), options...))
	return listen(t, app)
}

// envelopeFiber serves with an error handler that answers with 200.
func envelopeFiber(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return serveWith(t, fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		return c.Status(http.StatusOK).JSON(fiber.Map{"error": err.Error()})
	}}, guard, work, options)
}

// ownContextFiber serves work that gets fiber's own context.
func ownContextFiber(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	own := func(c fiber.Ctx) context.Context { return c }
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, fiberHandlerWith(work, own), options...))
	return listen(t, app)
}

func serveStreams(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return serveWith(t, fiber.Config{StreamRequestBody: true, BodyLimit: 64}, guard, work, options)
}

func serveWith(
	t *testing.T, config fiber.Config, guard *onceward.Guard, work suite.Work, options []onceward.Option,
) suite.Caller {
	app := fiber.New(config)
	app.Use(recoverer.New())
	accounts := app.Group("/accounts/:account")
	accounts.Post("/payments", oncewardfiber.Handler(guard, fiberHandler(work), options...))
	accounts.Post("/refunds", oncewardfiber.Handler(guard, fiberHandler(work), options...))
	return listen(t, app)
}

// listen serves on loopback until the test ends.
func listen(t *testing.T, app *fiber.App) suite.Caller {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	transport := new(http.Transport)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := app.ShutdownWithTimeout(await.Limit); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return suite.HTTP{URL: "http://" + listener.Addr().String(), Client: &http.Client{Transport: transport}}
}

// stateFiber serves a handler that replies with what fiber says, and then changes it.
func stateFiber(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Locals("user", "alice")
		c.Set("X-Served-By", "a middleware")
		return c.Next()
	})
	handler := func(c fiber.Ctx) error {
		facts := fmt.Sprintf("status %d, header %v, route %s, account %s, user %v, note %v, path %s, method %s, type %s, body %s",
			c.Response().StatusCode(), c.GetRespHeaders(), c.Route().Path, c.Params("account"), c.Locals("user"),
			c.Locals("note"), c.Path(), c.Method(), c.Get("Content-Type"), c.Body())
		c.Locals("user", "mallory")
		c.Locals("note", "was here")
		c.Path("/another")
		c.Method("PUT")
		c.Request().Header.Set("Content-Type", "text/plain")
		c.Request().SetBodyString("another")
		c.Set("X-Facts", "known")
		return c.Status(http.StatusCreated).SendString(facts)
	}
	if guard != nil {
		handler = oncewardfiber.Handler(guard, handler, options...)
	}
	app.Post("/accounts/:account/payments", handler)
	return listen(t, app)
}

// fiberHandler is the work as fiber has it: a refusal or a failure is an error, where no header goes with it.
func fiberHandler(work suite.Work) fiber.Handler {
	return fiberHandlerWith(work, fiber.Ctx.Context)
}

// fiberHandlerWith is the work with a context of a request.
func fiberHandlerWith(work suite.Work, of func(c fiber.Ctx) context.Context) fiber.Handler {
	return func(c fiber.Ctx) error {
		var payment suite.Payment
		if err := c.Bind().JSON(&payment); err != nil {
			return fiber.NewError(http.StatusTeapot, err.Error())
		}
		if c.Params("account") != payment.Account {
			return fiber.NewError(http.StatusTeapot, suite.ErrOtherAccount.Error())
		}
		reply := work(of(c), payment)
		for name, value := range reply.Header {
			c.Set(name, value)
		}
		switch {
		case reply.Status == 0:
			return nil
		case reply.Status >= http.StatusBadRequest:
			return fiber.NewError(reply.Status, reply.Body)
		default:
			return c.Status(reply.Status).SendString(reply.Body)
		}
	}
}

// wrongAdaptor takes fiber's own adaptor, which runs the handler when the guard has ended.
func wrongAdaptor(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	options = append(options, onceward.OperationName(colonOperation))
	app.Post("/accounts/:account/payments", adaptor.HTTPMiddleware(guard.Middleware(options...)), fiberHandler(work))
	return listen(t, app)
}

// wrongResponse runs the handler in the guard, with fiber's own response.
func wrongResponse(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	options = append(options, onceward.OperationName(colonOperation))
	app.Post("/accounts/:account/payments", func(c fiber.Ctx) (err error) {
		protected := guard.HandlerFunc(func(http.ResponseWriter, *http.Request) { err = fiberHandler(work)(c) }, options...)
		return errors.Join(err, adaptor.HTTPHandler(protected)(c))
	})
	return listen(t, app)
}

// wrongNextFiber goes on to another route, which fiber cannot do again.
func wrongNextFiber(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	app := fiber.New()
	next := func(c fiber.Ctx) error { return c.Next() }
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, next, options...))
	app.Post("/accounts/:account/*", fiberHandler(work))
	return listen(t, app)
}

// TestNotLast: a protected handler is no middleware.
func TestNotLast(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	protected := oncewardfiber.Handler(guard, func(c fiber.Ctx) error { return c.Next() }, reserved)
	behind := func(fiber.Ctx) error {
		t.Error("a handler behind the protected one ran")
		return nil
	}
	for name, register := range map[string]func(app *fiber.App){
		"use":  func(app *fiber.App) { app.Use(protected); app.Post("/accounts/:account/payments", behind) },
		"post": func(app *fiber.App) { app.Post("/accounts/:account/payments", protected, behind) },
	} {
		app := fiber.New()
		register(app)
		got := call(t, listen(t, app), "k")
		if got.Status != http.StatusInternalServerError || got.Body != oncewardfiber.ErrNotLast.Error() {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// TestAuditOfFiber: the guard learns its names, and a route that is not protected is found.
func TestAuditOfFiber(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app := fiber.New()
	created := func(c fiber.Ctx) error { return c.SendStatus(http.StatusCreated) }
	app.Use(recoverer.New())
	app.Group("/accounts/:account").Post("/payments", oncewardfiber.Handler(guard, created, reserved))
	app.Get("/", created)
	mounted := fiber.New()
	mounted.Post("/refunds", oncewardfiber.Handler(guard, created, reserved))
	mounted.Post("/open", created)
	app.Use("/shop", mounted)
	if err := guard.CheckOperations("POST /payment"); err != nil {
		t.Errorf("before the audit no name is certain, but: %v", err)
	}
	if err := oncewardfiber.Audit(app, "POST /shop/open"); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations(colonOperation, "POST /shop/refunds"); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations("POST /payment"); !errors.Is(err, onceward.ErrMisconfigured) {
		t.Errorf("a name that no route has is %v, want ErrMisconfigured", err)
	}
	app.Post("/login", created)
	app.Put("/vain", oncewardfiber.Handler(guard, created, reserved))
	err := oncewardfiber.Audit(app)
	if err == nil || !strings.Contains(err.Error(), "not protected: POST /shop/open, POST /login, PUT /vain:") {
		t.Errorf("routes that are not protected are %v", err)
	}
	if err := oncewardfiber.Audit(app, "POST /login", "POST /shop/open", "PUT /vain"); err != nil {
		t.Errorf("routes that are exempt are %v", err)
	}
}

// TestFiberScope: the scope may come from what a middleware of fiber has set.
func TestFiberScope(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, func(r *http.Request) (string, error) {
		c, ok := oncewardfiber.FromRequest(r)
		if !ok {
			return "", errors.New("no context of fiber")
		}
		if r.RemoteAddr != c.RequestCtx().RemoteAddr().String() || r.Host != c.Host() || r.TLS != nil {
			t.Errorf("the request is from %q to %q", r.RemoteAddr, r.Host)
		}
		return fiber.Locals[string](c, "tenant"), nil
	})
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Locals("tenant", strings.Clone(c.Get("Authorization")))
		return c.Next()
	})
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		return c.SendString(onceward.FromContext(c.Context()).Scope())
	}, reserved))
	if got := call(t, listen(t, app), "k"); got.Body != "Bearer alice" {
		t.Errorf("got %+v", got)
	}
	if _, ok := oncewardfiber.FromRequest(new(http.Request)); ok {
		t.Error("a request that did not come through fiber has a context of it")
	}
}

// TestAroundTheGuard: what is in front of the guard keeps its header, its context and the errors of requests without
// protection; what the handler removes is removed from replays too.
func TestAroundTheGuard(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app := fiber.New()
	type key struct{}
	var seen []error
	app.Use(func(c fiber.Ctx) error {
		c.Set("X-Outer", "yes")
		c.Set("X-Removed", "yes")
		c.Append("Vary", "Origin")
		c.SetContext(context.WithValue(c.Context(), key{}, "outer"))
		before := c.Context()
		err := c.Next()
		if c.Context() != before {
			t.Error("the context in front of the guard is the guard's")
		}
		seen = append(seen, err)
		return err
	})
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		if c.Context().Value(key{}) != "outer" {
			t.Error("the handler does not see what was set in front of the guard")
		}
		c.Response().Header.Del("X-Removed")
		c.Append("Vary", "Accept")
		c.Cookie(&fiber.Cookie{Name: "seen", Value: "1"})
		return fiber.NewError(http.StatusForbidden, "no")
	}, reserved, onceward.KeyOptional()))
	caller := listen(t, app)
	for _, test := range []struct {
		key      string
		replayed bool
	}{{"", false}, {"k", false}, {"k", true}} {
		got := call(t, caller, test.key)
		if got.Status != http.StatusForbidden || got.Body != "no" || got.Replayed != test.replayed {
			t.Errorf("key %q: got %+v", test.key, got)
		}
		h := got.Header
		if h.Get("X-Outer") != "yes" || h.Get("X-Removed") != "" || h.Get("Vary") != "Origin, Accept" {
			t.Errorf("key %q: the header is %v", test.key, h)
		}
		if cookie := h.Get("Set-Cookie"); !test.replayed && !strings.HasPrefix(cookie, "seen=1") {
			t.Errorf("key %q: the cookie is %q", test.key, cookie)
		}
	}
	if len(seen) != 3 || seen[0] == nil || seen[1] != nil || seen[2] != nil {
		t.Errorf("in front of the guard the errors are %v, want the unprotected one alone", seen)
	}
}

// TestStreamedAnswers: they are read whole, and stored; one that breaks off is an error.
func TestStreamedAnswers(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		return c.Status(http.StatusCreated).SendStreamWriter(func(w *bufio.Writer) {
			for _, part := range []string{"one ", "two"} {
				_, _ = w.WriteString(part)
				_ = w.Flush()
			}
		})
	}, reserved))
	app.Post("/accounts/:account/refunds", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		if c.Params("account") == "short" {
			return c.Status(http.StatusCreated).SendStream(strings.NewReader("half"), 8)
		}
		return c.Status(http.StatusCreated).SendStream(broken{})
	}, reserved))
	caller := listen(t, app)
	for _, replayed := range []bool{false, true} {
		got := call(t, caller, "k")
		if got.Status != http.StatusCreated || got.Body != "one two" || got.Replayed != replayed {
			t.Errorf("got %+v", got)
		}
	}
	for _, account := range []string{"a", "short"} {
		request := suite.Request{Key: account, Tenant: "alice", Refund: true, Payment: suite.Payment{Account: account}}
		if got, err := caller.Call(t.Context(), request); err != nil || got.Status != http.StatusInternalServerError {
			t.Errorf("%s: a stream that breaks off: got %+v, error %v", account, got, err)
		}
	}
}

// TestFiberStreamWithoutEnd: what streams until its client leaves ends at the deadline.
func TestFiberStreamWithoutEnd(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	app := fiber.New()
	ended := make(chan struct{})
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) {
			defer close(ended)
			for w.Flush() == nil {
				_, _ = w.WriteString("data: still here\n\n")
			}
		})
	}, reserved, onceward.Deadline(10*time.Millisecond)))
	caller := listen(t, app)
	if got := call(t, caller, "k"); got.Status != http.StatusInternalServerError {
		t.Errorf("got %+v, want a failure", got)
	}
	<-ended
	if got := call(t, caller, "k"); got.Code != "outcome-unknown" {
		t.Errorf("again: got %+v, want unknown", got)
	}
}

// TestInformationalStatus: as in net/http it does not end an answer.
func TestInformationalStatus(t *testing.T) {
	t.Parallel()
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guardOfScope(t, onceward.SingleScope("shop")),
		func(c fiber.Ctx) error { return c.Status(http.StatusEarlyHints).SendString("made") }, reserved))
	caller := listen(t, app)
	for _, replayed := range []bool{false, true} {
		if got := call(t, caller, "k"); got.Status != http.StatusOK || got.Body != "made" || got.Replayed != replayed {
			t.Errorf("got %+v", got)
		}
	}
}

// TestAbandoned: a handler that fiber's timeout middleware gave up goes on behind it, so that it must not run again.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	open := make(chan struct{})
	defer close(open)
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guardOfScope(t, onceward.SingleScope("shop")),
		timeout.New(func(fiber.Ctx) error {
			runs.Add(1)
			<-open
			return nil
		}, timeout.Config{Timeout: time.Millisecond}), reserved))
	caller := listen(t, app)
	if got := call(t, caller, "k"); got.Status != http.StatusRequestTimeout {
		t.Errorf("got %+v, want a timeout", got)
	}
	await.That(t, "the handler runs", func() bool { return runs.Load() == 1 })
	if got := call(t, caller, "k"); got.Code != "outcome-unknown" || runs.Load() != 1 {
		t.Errorf("again: got %+v after %d runs, want an unknown outcome of one", got, runs.Load())
	}
}

// TestScopesThatAreViews: fiber uses the memory of its strings again. Those that are a scope are the guard's own.
func TestScopesThatAreViews(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, func(r *http.Request) (string, error) {
		c, _ := oncewardfiber.FromRequest(r)
		return c.Get("Authorization"), nil
	})
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		return c.SendString(c.Get("Authorization"))
	}, reserved))
	caller := listen(t, app)
	for _, replayed := range []bool{false, true} {
		for i := range 20 {
			tenant := fmt.Sprint("tenant-", i)
			request := suite.Request{Key: "k", Tenant: tenant, Payment: suite.Payment{Account: "a"}}
			got, err := caller.Call(t.Context(), request)
			if err != nil || got.Body != "Bearer "+tenant || got.Replayed != replayed {
				t.Fatalf("%s: got %+v, error %v", tenant, got, err)
			}
		}
	}
}

// TestWordsThatAreViews: what a handler takes from a request and says of its operation stays what it was when fiber has
// used the memory of the request for others.
func TestWordsThatAreViews(t *testing.T) {
	t.Parallel()
	records := memory.New()
	guard, err := onceward.New(records, onceward.Config{
		Secret: []byte("the secret of the tests"), Logger: quiet,
		Scope: func(r *http.Request) (string, error) {
			return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		op := onceward.FromContext(c.Context())
		op.SetProviderID(c.Params("account"))
		op.SetReason(c.Params("account"))
		op.Unknown()
		return c.SendStatus(http.StatusBadGateway)
	}, reserved))
	caller := listen(t, app)
	for _, tenant := range []string{"alice", "bobby", "carol"} { // of one length, and on one connection
		request := suite.Request{Key: "k", Tenant: tenant, Payment: suite.Payment{Account: tenant}}
		if _, err := caller.Call(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	for _, tenant := range []string{"alice", "bobby", "carol"} {
		rec, err := records.Get(t.Context(), store.ID{Scope: tenant, Key: "k"})
		if err != nil || rec.ProviderID != tenant || rec.LastError != tenant {
			t.Errorf("the record of %s has provider's id %q and reason %q, error %v", tenant, rec.ProviderID, rec.LastError, err)
		}
	}
}

// broken is a stream that breaks off.
type broken struct{}

// Read implements [io.Reader].
func (broken) Read([]byte) (int, error) { return 0, errors.New("the test breaks the stream") }

// forgetful is a store that keeps no answers.
type forgetful struct{ *memory.Store }

// Complete implements [store.Store].
func (forgetful) Complete(context.Context, store.Claim, *store.Completion) (time.Time, error) {
	return time.Time{}, store.ErrUnavailable
}

// TestAnswerThatCouldNotEnd: where net/http would have its connection cut, which would end a process of fasthttp, the
// client is told that the request failed.
func TestAnswerThatCouldNotEnd(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(forgetful{memory.New()}, onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
		SettleTimeout: 20 * time.Millisecond, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	large := strings.Repeat("r", 100)
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guard, func(c fiber.Ctx) error {
		return c.Status(http.StatusCreated).SendString(large)
	}, reserved, onceward.ResponseLimit(10)))
	caller := listen(t, app)
	if got := call(t, caller, "k"); got.Status != http.StatusInternalServerError || strings.Contains(got.Body, large) {
		t.Errorf("got %+v, want a failure", got)
	}
	if got := call(t, caller, "k"); got.Status != http.StatusConflict {
		t.Errorf("again: got %+v, want a conflict", got)
	}
}

func call(t *testing.T, caller suite.Caller, key string) suite.Answer {
	t.Helper()
	request := suite.Request{Key: key, Tenant: "alice", Payment: suite.Payment{Account: "a"}}
	got, err := caller.Call(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
