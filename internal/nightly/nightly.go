// Package nightly marks the tests that only `make test-all` runs: matrices, storms, groups of servers that take long to
// start. `make test` leaves them out, because every change and every newcomer waits for it. A test that is left out says
// so, and `make test-all` fails if any test is skipped, so that none is left out of both.
package nightly

import (
	"flag"
	"os"
	"testing"
)

// variable is set to 1 by `make test-all`.
const variable = "ONCEWARD_TEST_ALL"

// Runs reports whether everything is tested.
func Runs() bool { return os.Getenv(variable) == "1" }

// Only leaves a test to `make test-all`. The reason says what the test costs, or what `make test` has in its place.
func Only(t testing.TB, reason string) {
	t.Helper()
	if !Runs() {
		t.Skipf("make test-all runs it: %s", reason)
	}
}

// Either returns one of two sizes of a test: the nightly one, or the one for every change.
func Either[T any](nightly, everyChange T) T {
	if Runs() {
		return nightly
	}
	return everyChange
}

// DrawLess lowers how many random sequences a test of rapid draws on each change, for TestMain. The night draws a
// hundred, and so does a package that does not call it; -rapid.checks on the command line wins.
func DrawLess(sequences string) {
	f := flag.Lookup("rapid.checks")
	if f == nil || Runs() || f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(sequences); err != nil {
		panic(err)
	}
}
