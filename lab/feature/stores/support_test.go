// Package stores_test tests the stores that wrap other stores, over real ones: fronts, encryption, the circuit breaker,
// limits, and the stacks that users build of them.
package stores_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(servers.Tests{M: m})) }

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openFile opens a store on a file.
func openFile(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "onceward.db"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
