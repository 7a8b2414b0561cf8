// Package stores_test tests the stores that wrap other stores, over real ones: fronts, encryption, the circuit breaker,
// limits, and the stacks that users build of them.
package stores_test

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(servers.Tests{M: watchdog.Over(m)}) }

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
