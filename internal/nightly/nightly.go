// Package nightly marks the tests that only `make test-all` runs: matrices, storms, groups of servers that
// start slowly. `make test` skips them, because every change and every newcomer waits for it. A skipped
// test reports so, and `make test-all` fails if any test is skipped, so that no test is skipped in both.
package nightly

import (
	"flag"
	"os"
	"testing"
)

// variable is set to 1 by `make test-all`.
const variable = "ONCEWARD_TEST_ALL"

// Runs reports whether all tests run.
func Runs() bool { return os.Getenv(variable) == "1" }

// Only skips a test unless `make test-all` runs. The reason is what the test costs, or what `make test` runs instead.
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

// DrawLess lowers the number of random sequences that a rapid test draws on each change, for TestMain. Nightly runs
// draw a hundred, and so do packages that do not call DrawLess; -rapid.checks on the command line takes precedence.
func DrawLess(sequences string) {
	f := flag.Lookup("rapid.checks")
	if f == nil || Runs() || f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(sequences); err != nil {
		panic(err)
	}
}
