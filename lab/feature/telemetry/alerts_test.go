package telemetry_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

const rulesFile = "../../../telemetry/alerts/onceward.rules.yml"

// quicker makes thresholds that a test can pass without a large load and without hours. They are of tens of seconds:
// what the load leaves behind on a machine that stands still for some of them does not pass them, and what a test
// causes stays in the windows for long enough to be seen.
var quicker = strings.NewReplacer(
	"[5m]", "[2m]", "[3m]", "[30s]",
	"for: 1m", "for: 300ms", "for: 2m", "for: 300ms", "for: 5m", "for: 300ms",
	"> 900", "> 30", "> 300", "> 20", "> 1\n", "> 0.7\n", "> 0.1\n", "> 0.1\n",
)

// quickRules writes the rules for a test of seconds, and returns the file.
func quickRules(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	must(t, err)
	path := filepath.Join(t.TempDir(), "rules.yml")
	must(t, os.WriteFile(path, []byte(quicker.Replace(string(text))), 0o600))
	return path
}

// TestAlertRules checks the rules as they are shipped, and tests them on series of hours.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", rulesFile}, {"test", "rules", strings.Replace(rulesFile, ".yml", "_test.yml", 1)},
	} {
		if out, err := servers.Promtool(t.Context(), args...); err != nil {
			t.Errorf("M4: promtool %s: %v\n%s", args, err, out)
		}
	}
	text, err := os.ReadFile(rulesFile)
	must(t, err)
	handbook, err := os.ReadFile("../../../docs/operators-handbook.md")
	must(t, err)
	runbooks := regexp.MustCompile(`operators-handbook\.md#([a-z-]+)`).FindAllStringSubmatch(string(text), -1)
	if len(runbooks) != 9 || strings.Count(string(text), "- alert:") != 9 {
		t.Errorf("M4: there are nine alerts, each with a runbook: %q", runbooks)
	}
	for _, found := range runbooks {
		heading := "### " + strings.ToUpper(found[1][:1]) + strings.ReplaceAll(found[1][1:], "-", " ")
		if !strings.Contains(string(handbook), heading+"\n") {
			t.Errorf("M4: the handbook has no section %q", heading)
		}
	}
}

// firing are the alerts that fire now.
func (s *scraped) firing() []string {
	s.Helper()
	samples, err := s.prometheus.Query(s.Context(), `ALERTS{alertstate="firing"}`)
	must(s, err)
	names := make(map[string]bool)
	for _, each := range samples {
		names[strings.TrimPrefix(each.Labels["alertname"], "Onceward")] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// wantNoAlert waits until none fires or is about to: on a machine that stands still the load itself may be slow enough.
func (s *scraped) wantNoAlert() {
	s.Helper()
	s.awaitValue(`count(ALERTS) or vector(0)`, 0)
}

// fault is one that a test causes, and the alerts that fire then.
type fault struct {
	cause  func()
	alerts []string
}

// wantAlerts causes one fault after the other. An alert fires when its fault is caused, and none whose fault was not.
func (s *scraped) wantAlerts(faults ...fault) {
	s.Helper()
	caused := make(map[string]bool)
	for _, fault := range faults {
		fault.cause()
		for _, alert := range fault.alerts {
			caused[alert] = true
			awaitSeen(s, alert+" fires", func() (bool, string) {
				firing := s.firing()
				return slices.Contains(firing, alert), fmt.Sprint(firing)
			})
		}
		for _, alert := range s.firing() {
			if !caused[alert] {
				s.Errorf("M4: %s fires though its fault was not caused", alert)
			}
		}
	}
}

// probe uses one key for many requests.
func (s *scraped) probe() {
	for i := range 40 {
		s.pay(http.StatusUnprocessableEntity, "alice", "pay-0", 1000+i)
	}
}

// loop repeats one request without a pause.
func (s *scraped) loop() {
	for range 250 {
		s.pay(http.StatusCreated, "bob", "pay-0", 100)
	}
}

// giveUp leaves an outcome unknown, and asks after it until a person has to.
func (w *world) giveUp() {
	w.do(http.StatusInternalServerError, "lost", "unknown")
	w.reconcile(1, reconcile.ResolverFunc(func(context.Context, *store.Record) (reconcile.Answer, error) {
		return reconcile.StillUnknown("the other system does not say"), nil
	}), 1)
}

// strandMessage lets the provider refuse to charge.
func (s *scraped) strandMessage() {
	s.setFaults(provider.Rule{
		Match: provider.Match{Method: http.MethodPost}, Kind: provider.ErrorBefore, Status: 503,
	})
	s.pay(http.StatusCreated, "bob", "stranded", 100)
	s.awaitValue(`onceward_outbox_depth`, 1)
}

// loseStore ends the database.
func (s *scraped) loseStore() {
	must(s, s.postgres.Stop())
	for i := range 10 {
		s.pay(http.StatusServiceUnavailable, "bob", fmt.Sprint("down-", i), 100)
	}
}
