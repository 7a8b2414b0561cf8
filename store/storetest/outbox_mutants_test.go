package storetest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// The promises that a store can break, each with the group in which that has to be noticed.
var mutants = map[string]string{
	"claims ignore order":                              "OutboxOrder",
	"a poison message fills the claim":                 "OutboxOrder",
	"those behind are never freed":                     "OutboxOrder",
	"a late commit is skipped":                         "OutboxTransactions",
	"rolled-back messages are visible":                 "OutboxTransactions",
	"the order is that of adding":                      "OutboxTransactions",
	"fencing by id only":                               "OutboxFencing",
	"attempts are not counted":                         "OutboxLeases",
	"the whole run is counted":                         "OutboxLeases",
	"done messages are claimed again":                  "Outbox",
	"the work of a fenced worker is committed":         "OutboxFinishTx",
	"the end of a message is not undone with its work": "OutboxFinishTx",
	"the purge removes open ones":                      "OutboxUpkeep",
	"claims are not atomic":                            "OutboxCrowd",
	"nobody is woken":                                  "OutboxUpkeep",
	"a replay keeps the attempts":                      "OutboxOperator",
	"an empty answer overwrites the one before":        "OutboxFencing",
	"a replay drops the answer of a person":            "OutboxFencing",
	"a dropped dead letter is counted":                 "OutboxOperator",
	"an event is remembered in spite of a rollback":    "InboxTransactions",
	"the same event is noted twice at once":            "InboxTransactions",
}

// mutantVariable tells a process of this test which promise its store is to break.
const mutantVariable = "ONCEWARD_STORETEST_MUTANT"

// patienceFor is how long the suite waits for what a store does not do that breaks a promise.
func patienceFor(broken string) time.Duration {
	if broken == "" {
		return patience
	}
	return 3 * time.Second
}

// referenceHarness opens stores that keep messages and events in memory, on a clock that stands still or on one that
// jumps, as the clock of a machine does that stands still now and then.
func referenceHarness(broken string, moving bool) Harness {
	return Harness{
		Features: Features{ConcurrentTx: true},
		patience: patienceFor(broken),
		Open: func(testing.TB) Instance {
			if !moving {
				var ahead atomic.Int64
				return Instance{Store: newReference(func() time.Time {
					return time.Now().Add(time.Duration(ahead.Add(int64(45 * time.Millisecond))))
				}, broken)}
			}
			var clock atomic.Int64
			clock.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
			return Instance{
				Store:   newReference(func() time.Time { return time.UnixMicro(clock.Load()).UTC() }, broken),
				Advance: func(d time.Duration) { clock.Add(d.Microseconds()) },
			}
		},
	}
}

// runNew runs the groups that the references are there for.
func runNew(t *testing.T, h Harness) {
	t.Helper()
	h.look(t)
	for _, g := range groups {
		if slices.ContainsFunc([]string{"Outbox", "Inbox"}, func(prefix string) bool { return strings.HasPrefix(g.name, prefix) }) && g.needed(h.probe) {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				g.run(t, h)
			})
		}
	}
}

// TestReference shows that the suite passes stores that keep what they promise. lab/feature/stores has such a store,
// and its mutants, for rows.
func TestReference(t *testing.T) {
	t.Parallel()
	broken := os.Getenv(mutantVariable)
	t.Run("memory", func(t *testing.T) { runNew(t, referenceHarness(broken, true)) })
	if broken == "" {
		t.Run("a clock that jumps", func(t *testing.T) { runNew(t, referenceHarness(broken, false)) })
	}
}

// TestMutants shows that the suite fails stores that break a promise. Each is run in a process of its own, because its
// tests are to fail.
func TestMutants(t *testing.T) {
	t.Parallel()
	if os.Getenv(mutantVariable) != "" {
		t.Fatal("this is for processes that run TestReference alone")
	}
	for name, group := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := proctest.Run(t, proc.Self(mutantVariable, name, "-test.run=^TestReference$/^memory$/^"+group+"$"))
			if run.Code == 0 {
				t.Fatalf("a store that breaks this promise passed group %s", group)
			}
			output := run.Stdout + run.Stderr
			caught := failedTest.FindAllStringSubmatch(output, -1)
			if len(caught) == 0 || strings.Contains(output, "DATA RACE") {
				t.Fatalf("the process failed, but no test of group %s did:\n%s", group, output)
			}
			for _, match := range caught {
				t.Logf("caught by %s", match[1])
			}
		})
	}
}

// failedTest finds the tests that failed in the output of a test process.
var failedTest = regexp.MustCompile(`(?m)^\s+--- FAIL: TestReference/\w+/(\S+/\S+)`)
