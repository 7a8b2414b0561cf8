// Package routers_test tests the guard with every router, framework and protocol for which there is an adapter or a
// recipe in docs/routers.md or docs/batches.md: real servers and clients on loopback.
package routers_test

import (
	"log/slog"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/lab/feature/suite"
	"github.com/onceward/onceward/store/memory"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	goleak.VerifyTestMain(watchdog.Settling(m, "github.com/valyala/fasthttp."),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),    // as long as the process
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"), // ten seconds longer than a server
	)
}

var quiet = slog.New(slog.DiscardHandler)

// colonOperation is the name that payments have to have under the routers that write parameters with a colon.
const colonOperation = "POST /accounts/:account/payments"

// withErrors adds that handlers return errors, also late ones.
func withErrors(f suite.Features, late bool) suite.Features {
	f.Errors, f.LateErrors = true, late
	return f
}

func guardOfScope(t testing.TB, scope onceward.ScopeFunc) *onceward.Guard {
	t.Helper()
	guard, err := onceward.New(memory.New(), onceward.Config{
		Scope: scope, Secret: []byte("the secret of the tests"), StoreTimeout: await.Limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	return guard
}
