package nightly_test

import (
	"testing"

	"github.com/onceward/onceward/internal/nightly"
)

// skipper notes that a test was skipped. A real one would be taken for a test that `make test-all` leaves out.
type skipper struct {
	testing.TB
	skipped bool
}

func (*skipper) Helper() {}

func (s *skipper) Skipf(string, ...any) { s.skipped = true }

func TestOnlyTheNightRunsEverything(t *testing.T) {
	for _, c := range []struct {
		variable string
		skipped  bool
		size     int
	}{{"", true, 10}, {"0", true, 10}, {"1", false, 10_000}} {
		t.Setenv("ONCEWARD_TEST_ALL", c.variable)
		var s skipper
		nightly.Only(&s, "it is a storm")
		if size := nightly.Either(10_000, 10); s.skipped != c.skipped || size != c.size {
			t.Errorf("with %q it is skipped: %v, and its size is %d", c.variable, s.skipped, size)
		}
	}
}
