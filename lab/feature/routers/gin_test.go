package routers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestGin(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gin", Operation: colonOperation, Serve: serveGin, State: stateGin, Hooks: hooksGin, OwnContext: ownContextGin,
		Envelope: envelopeGin, Deadline: deadlineGin, Features: withErrors(suite.HTTPFeatures, true),
		Wrong: []suite.Wrong{
			{Name: "its own writer", Serve: wrongWriterGin},
			{Name: "its own writer, no abort", Serve: wrongWriterGoingOn, RunsAgain: true},
			{Name: "a chain that runs once", Serve: wrongNextGin, Mistake: suite.NotRerun},
		},
	})
}

func newEngine() *gin.Engine {
	engine := gin.New()
	engine.Use(gin.RecoveryWithWriter(io.Discard))
	return engine
}

func serveGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	accounts := engine.Group("/accounts/:account")
	accounts.POST("/payments", oncewardgin.Handler(guard, ginHandler(work), options...))
	accounts.POST("/refunds", oncewardgin.Handler(guard, ginHandler(work), options...))
	return suite.ServeHTTP(t, engine)
}

// deadlineGin serves behind a middleware that sets a deadline.
func deadlineGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	engine.Use(func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), suite.FrontDeadline)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	})
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, ginHandler(work), options...))
	return suite.ServeHTTP(t, engine)
}

// envelopeGin serves a handler that aborts the chain with an error, around which another handler answers the error with
// 200.
func envelopeGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		c.Next()
		c.JSON(http.StatusOK, gin.H{"error": c.Errors.Last().Error()})
	}, options...), func(c *gin.Context) {
		reply := work(c.Request.Context(), suite.Payment{Account: c.Param("account")})
		c.Abort()
		_ = c.Error(errors.New(reply.Body))
	})
	return suite.ServeHTTP(t, engine)
}

// ownContextGin serves work that gets gin's own context, which does not fall back to that of the request.
func ownContextGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	own := func(c *gin.Context) context.Context { return c }
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, ginHandlerWith(work, own), options...))
	return suite.ServeHTTP(t, engine)
}

// stateGin serves a handler that replies with what gin says, and then changes it.
func stateGin(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	engine.ContextWithFallback = true
	engine.Use(func(c *gin.Context) { // as a middleware does that says who calls
		c.Set("user", "alice")
		_ = c.Error(errors.New("slow"))
		c.Next()
	})
	handler := func(c *gin.Context) {
		w := c.Writer
		facts := fmt.Sprintf("aborted %t, written %t, status %d, size %d, header %v, route %s, account %s, params %v, "+
			"keys %v, errors %v, path %s", c.IsAborted(), w.Written(), w.Status(), w.Size(), w.Header(), c.FullPath(),
			c.Param("account"), c.Params, c.Keys, c.Errors.Errors(), c.Request.URL)
		c.Set("user", "mallory")
		c.Set("handler", "was here")
		_ = c.Error(errors.New("of the handler"))
		c.AddParam("account", "another")
		c.Params[0].Value += "!"
		c.Status(http.StatusTeapot)
		c.Next() // there is nothing behind it
		c.Header("X-Facts", "known")
		c.String(http.StatusCreated, "%s; then aborted %t, written %t, status %d, size %d", facts,
			c.IsAborted(), w.Written(), w.Status(), w.Size())
	}
	if guard != nil {
		handler = oncewardgin.Handler(guard, handler, options...)
	}
	engine.POST("/accounts/:account/payments", handler)
	return suite.ServeHTTP(t, engine)
}

// hookedGin calls a hook when the answer begins, which asks gin's context for the header.
type hookedGin struct {
	gin.ResponseWriter
	context *gin.Context
	began   bool
}

func (w *hookedGin) WriteHeader(status int) {
	if !w.began {
		w.began = status >= http.StatusOK
		w.context.Header(suite.HookHeader, "before")
	}
	w.ResponseWriter.WriteHeader(status)
}

// hooksGin serves behind a middleware with a writer of its own.
func hooksGin(t *testing.T, guard *onceward.Guard, options ...onceward.Option) suite.Caller {
	engine := newEngine()
	engine.Use(func(c *gin.Context) {
		c.Writer = &hookedGin{ResponseWriter: c.Writer, context: c}
		c.Next()
	})
	handler := func(c *gin.Context) {
		var payment suite.Payment
		if err := c.ShouldBindJSON(&payment); err != nil {
			c.String(http.StatusTeapot, err.Error())
			return
		}
		suite.WriteAs(payment.Memo, c.Writer)
	}
	if guard != nil {
		handler = oncewardgin.Handler(guard, handler, options...)
	}
	engine.POST("/accounts/:account/payments", handler)
	return suite.ServeHTTP(t, engine)
}

// ginHandler is the work as gin has it.
func ginHandler(work suite.Work) gin.HandlerFunc {
	return ginHandlerWith(work, func(c *gin.Context) context.Context { return c.Request.Context() })
}

// ginHandlerWith is the work with a context of a request.
func ginHandlerWith(work suite.Work, of func(c *gin.Context) context.Context) gin.HandlerFunc {
	return func(c *gin.Context) {
		var payment suite.Payment
		if err := c.ShouldBindJSON(&payment); err != nil {
			c.String(http.StatusTeapot, err.Error())
			return
		}
		if c.Param("account") != payment.Account {
			c.String(http.StatusTeapot, suite.ErrOtherAccount.Error())
			return
		}
		reply := work(of(c), payment)
		for name, value := range reply.Header {
			c.Header(name, value)
		}
		if reply.Status >= http.StatusInternalServerError {
			_ = c.Error(errors.New(reply.Body))
		}
		switch {
		case reply.Err != nil:
			breaksOff := io.MultiReader(strings.NewReader(reply.Body), iotest.ErrReader(reply.Err))
			c.DataFromReader(reply.Status, -1, "text/plain", breaksOff, nil)
		case reply.Status == 0:
		case reply.Body == "":
			c.Status(reply.Status)
		case reply.Header["Content-Type"] != "":
			c.Data(reply.Status, reply.Header["Content-Type"], []byte(reply.Body))
		default:
			c.String(reply.Status, "%s", reply.Body)
		}
	}
}

// wrongWriterGin runs the chain in the guard, with gin's own writer.
func wrongWriterGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return wrongly(t, work, func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			c.Request = r
			c.Next()
		}, options...).ServeHTTP(c.Writer, c.Request)
		c.Abort()
	})
}

// wrongWriterGoingOn also forgets that gin goes on by itself.
func wrongWriterGoingOn(
	t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option,
) suite.Caller {
	return wrongly(t, work, func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		guard.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			c.Request = r
			c.Next()
		}, options...).ServeHTTP(c.Writer, c.Request)
	})
}

// wrongNextGin hands the guard's writer on, and runs the chain, which cannot run again.
func wrongNextGin(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return wrongly(t, work, func(c *gin.Context) {
		c.Request.Pattern = c.FullPath()
		own := c.Writer
		guard.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.Writer, c.Request = gin.CreateTestContextOnly(w, new(gin.Engine)).Writer, r
			c.Next()
		}, options...).ServeHTTP(own, c.Request)
		c.Writer = own
		c.Abort()
	})
}

func wrongly(t *testing.T, work suite.Work, middleware gin.HandlerFunc) suite.Caller {
	engine := newEngine()
	engine.Use(middleware)
	engine.POST("/accounts/:account/payments", ginHandler(work))
	return suite.ServeHTTP(t, engine)
}

// TestAuditOfGin: the guard learns its names, and a route that is not protected is found.
func TestAuditOfGin(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	created := func(c *gin.Context) { c.Status(http.StatusCreated) }
	reserved := onceward.Reserved(onceward.FailureUnknown)
	engine.Group("/accounts/:account").POST("/payments", oncewardgin.Handler(guard, created, reserved))
	engine.GET("/", created)
	if err := guard.CheckOperations("POST /payment"); err != nil {
		t.Errorf("before the audit no name is certain, but: %v", err)
	}
	if err := oncewardgin.Audit(engine); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations(colonOperation); err != nil {
		t.Error(err)
	}
	if err := guard.CheckOperations("POST /payment"); !errors.Is(err, onceward.ErrMisconfigured) {
		t.Errorf("a name that no route has is %v, want ErrMisconfigured", err)
	}
	engine.POST("/login", created)
	engine.PUT("/vain", oncewardgin.Handler(guard, created, reserved))
	err := oncewardgin.Audit(engine, "POST /other")
	if err == nil || !strings.Contains(err.Error(), "not protected: POST /login, PUT /vain:") {
		t.Errorf("routes that are not protected are %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "gin shows the last handler of a route alone") {
		t.Errorf("a protected handler in front of another one cannot be seen, and the error does not say so: %v", err)
	}
	if err := oncewardgin.Audit(engine, "POST /login", "PUT /vain"); err != nil {
		t.Errorf("routes that are exempt are %v", err)
	}
}

// TestGinScope: the scope may come from what a middleware of gin has set.
func TestGinScope(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, func(r *http.Request) (string, error) {
		c, ok := oncewardgin.FromRequest(r)
		if !ok {
			return "", errors.New("no context of gin")
		}
		return c.GetString("tenant"), nil
	})
	engine := gin.New()
	engine.Use(func(c *gin.Context) { c.Set("tenant", c.GetHeader("Authorization")) })
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		c.String(http.StatusCreated, onceward.FromContext(c.Request.Context()).Scope())
	}, onceward.Reserved(onceward.FailureUnknown)))
	caller := suite.ServeHTTP(t, engine)
	request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
	if got, err := caller.Call(t.Context(), request); err != nil || got.Body != "Bearer alice" {
		t.Errorf("got %+v, error %v", got, err)
	}
	if _, ok := oncewardgin.FromRequest(new(http.Request)); ok {
		t.Error("a request that did not come through gin has a context of it")
	}
}

// TestUnprotectedRequests: a method that is not protected, and a request without a key, get gin's own writer.
func TestUnprotectedRequests(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	engine.Any("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		if pushes := c.Writer.Pusher(); pushes != nil {
			t.Error("a server of HTTP/1.1 pushes")
		}
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "part")
			return false
		})
	}, onceward.Reserved(onceward.FailureUnknown), onceward.KeyOptional()))
	caller := suite.ServeHTTP(t, engine)
	for _, key := range []string{"", "k"} { // a protected answer streams too
		request := suite.Request{Key: key, Tenant: "alice", Payment: suite.Payment{Account: "a"}}
		if got, err := caller.Call(t.Context(), request); err != nil || got.Body != "part" {
			t.Errorf("key %q: got %+v, error %v", key, got, err)
		}
	}
}

// TestStatusAlone: c.Status writes nothing by itself, and is an answer all the same, be it that of silence.
func TestStatusAlone(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		<-c.Request.Context().Done() // so that silence would be a failure
		c.Status(http.StatusOK)
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Deadline(time.Millisecond)))
	caller := suite.ServeHTTP(t, engine)
	for _, replayed := range []bool{false, true} {
		request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
		got, err := caller.Call(t.Context(), request)
		if err != nil || got.Status != http.StatusOK || got.Replayed != replayed {
			t.Errorf("got %+v, error %v", got, err)
		}
	}
}

// TestGinStreamWithoutEnd: what streams until its client leaves ends at the deadline: the work goes on without a
// client.
func TestGinStreamWithoutEnd(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		if !c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "data: still here\n\n")
			return true
		}) {
			t.Error("the stream ended by itself")
		}
	}, onceward.Reserved(onceward.FailureUnknown), onceward.Deadline(10*time.Millisecond)))
	caller := suite.ServeHTTP(t, engine)
	request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
	if got, err := caller.Call(t.Context(), request); err == nil {
		t.Errorf("got %+v, want a connection that is cut", got)
	}
	if got, err := caller.Call(t.Context(), request); err != nil || got.Code != "outcome-unknown" {
		t.Errorf("again: got %+v, error %v, want unknown", got, err)
	}
}

// TestGinLeftBehind: what a run that was undone has left behind does not reach into the next one.
func TestGinLeftBehind(t *testing.T) {
	t.Parallel()
	guard, err := onceward.New(suite.NewUndoingStore(t), onceward.Config{
		Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var left []http.ResponseWriter
	engine := gin.New()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		for _, w := range left {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("left behind"))
		}
		left = append(left, c.Writer)
		c.String(http.StatusCreated, "run %d", len(left))
	}, onceward.Transactional()))
	caller := suite.ServeHTTP(t, engine)
	for _, replayed := range []bool{false, true} {
		request := suite.Request{Key: "k", Tenant: "alice", Payment: suite.Payment{Account: "a"}}
		got, err := caller.Call(t.Context(), request)
		if err != nil || got.Status != http.StatusCreated || got.Body != "run 2" || got.Replayed != replayed {
			t.Errorf("got %+v, error %v", got, err)
		}
	}
}

// TestGinChain: handlers in front of a protected one may abort the chain, so may the handler itself, and handlers behind
// it run with it: once for a key, and not for a replay.
func TestGinChain(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	var ran []string
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		if c.Param("account") == "bad" {
			c.AbortWithStatusJSON(http.StatusUnprocessableEntity, gin.H{"error": "no such account"})
		}
		if c.IsAborted() {
			return
		}
		ran = append(ran, "handler")
		c.Next()
		ran = append(ran, "handler again")
	}, onceward.Reserved(onceward.FailureUnknown)), func(c *gin.Context) {
		if onceward.FromContext(c.Request.Context()) == nil {
			t.Error("a handler behind the protected one runs without protection")
		}
		ran = append(ran, "behind")
		c.String(http.StatusCreated, "paid")
	}, func(*gin.Context) { ran = append(ran, "last") })
	caller := suite.ServeHTTP(t, engine)
	for _, replayed := range []bool{false, true} {
		request := suite.Request{Key: "k", Payment: suite.Payment{Account: "a"}}
		got, err := caller.Call(t.Context(), request)
		if err != nil || got.Status != http.StatusCreated || got.Body != "paid" || got.Replayed != replayed {
			t.Errorf("got %+v, error %v", got, err)
		}
		request = suite.Request{Key: "bad", Payment: suite.Payment{Account: "bad"}}
		got, err = caller.Call(t.Context(), request)
		if err != nil || got.Status != http.StatusUnprocessableEntity || got.Replayed != replayed {
			t.Errorf("aborted: got %+v, error %v", got, err)
		}
	}
	if want := []string{"handler", "behind", "last", "handler again"}; !slices.Equal(ran, want) {
		t.Errorf("there ran %q, want %q", ran, want)
	}
}

// TestGinChainThatCannotRunAgain: gin's chain runs once. Where it would have to run again, because the handler has aborted
// it or others are behind the handler, nothing is executed, and the client is told so.
func TestGinChainThatCannotRunAgain(t *testing.T) {
	t.Parallel()
	for name, handlers := range map[string][]gin.HandlerFunc{
		"aborted": {func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusCreated, "paid") }},
		"silent":  {func(c *gin.Context) { c.Abort() }},
		"handlers behind": {
			func(c *gin.Context) { c.String(http.StatusCreated, "paid") }, func(*gin.Context) {},
		},
	} {
		guard, err := onceward.New(suite.NewUndoingStore(t), onceward.Config{
			Scope: onceward.SingleScope("shop"), Secret: []byte("the secret of the tests"), Logger: quiet,
		})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		first := handlers[0]
		handlers[0] = oncewardgin.Handler(guard, func(c *gin.Context) { runs++; first(c) }, onceward.Transactional())
		engine := gin.New()
		engine.POST("/accounts/:account/payments", handlers...)
		request := suite.Request{Key: "k", Payment: suite.Payment{Account: "a"}}
		got, err := suite.ServeHTTP(t, engine).Call(t.Context(), request)
		if err != nil || got.Status != http.StatusServiceUnavailable || got.Code != "not-executed" || !got.Retryable || runs != 1 {
			t.Errorf("%s: got %+v, error %v, after %d runs", name, got, err, runs)
		}
	}
}

// TestGinTemporaryFiles: those of a form in a request without protection are removed too.
func TestGinTemporaryFiles(t *testing.T) {
	t.Parallel()
	guard := guardOfScope(t, onceward.SingleScope("shop"))
	engine := gin.New()
	engine.POST("/accounts/:account/payments", oncewardgin.Handler(guard, func(c *gin.Context) {
		c.String(http.StatusOK, "%s", suite.TemporaryFile(t, c.Request))
	}, onceward.Reserved(onceward.FailureUnknown), onceward.KeyOptional()))
	suite.WantFilesRemoved(t, engine)
}
