package routers_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
	"github.com/onceward/onceward/lab/feature/suite"
)

func TestGin(t *testing.T) {
	t.Parallel()
	suite.Run(t, suite.Adapter{
		Name: "gin", Operation: colonOperation, Serve: serveGin, Features: suite.HTTPFeatures,
		Wrong: []suite.Wrong{
			{Name: "its own writer", Serve: wrongWriterGin},
			{Name: "its own writer, no abort", Serve: wrongWriterGoingOn, RunsAgain: true},
			{Name: "a chain that runs once", Serve: wrongNextGin, Mistake: suite.NotRerun},
			{Name: "the adapter as a middleware", Serve: wrongMiddleware, Mistake: suite.NoAnswer},
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
	behind := func(*gin.Context) { t.Error("a handler behind the protected one ran") }
	accounts.POST("/payments", oncewardgin.Handler(guard, ginHandler(work), options...), behind)
	accounts.POST("/refunds", oncewardgin.Handler(guard, ginHandler(work), options...))
	return suite.ServeHTTP(t, engine)
}

// ginHandler is the work as gin has it.
func ginHandler(work suite.Work) gin.HandlerFunc {
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
		reply := work(c.Request.Context(), payment)
		for name, value := range reply.Header {
			c.Header(name, value)
		}
		switch {
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

// wrongMiddleware takes the adapter's Handler for a middleware.
func wrongMiddleware(t *testing.T, guard *onceward.Guard, work suite.Work, options ...onceward.Option) suite.Caller {
	return wrongly(t, work, oncewardgin.Handler(guard, func(c *gin.Context) { c.Next() }, options...))
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
