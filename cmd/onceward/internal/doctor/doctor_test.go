package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Over(servers.Tests{M: m})) }

// examine runs the doctor.
func examine(t *testing.T, url string, c doctor.Config) *doctor.Report {
	t.Helper()
	report, err := doctor.Examine(t.Context(), url, c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// wantHealthy: nothing is found, and everything was checked.
func wantHealthy(t *testing.T, report *doctor.Report) {
	t.Helper()
	for _, f := range report.Findings() {
		t.Errorf("a healthy store: %s: %s: %s", f.Severity, f.Check, f.What)
	}
	for _, r := range report.NotChecked() {
		t.Errorf("%s was not checked: %s", r.Check, r.Seen)
	}
}

// lie is something that was planted, and what the doctor is to say about it.
type lie struct {
	check    string
	severity doctor.Severity
	says     string
	// also are checks that find something too, because of the same lie.
	also []string
}

// wantFound: the lie is found and named, in full, and nothing else is.
func wantFound(t *testing.T, report *doctor.Report, want lie) {
	t.Helper()
	named := false
	for _, result := range report.Results {
		for _, f := range result.Findings {
			if f.Check == want.check && f.Severity == want.severity && strings.Contains(f.What, want.says) {
				named = true
				wantWhole(t, f)
			} else if f.Severity != doctor.Note && f.Check != want.check && !slices.Contains(want.also, f.Check) {
				t.Errorf("found besides: %s: %s", f.Check, f.What)
			}
		}
	}
	if !named {
		t.Errorf("%s does not say %q (%s):\n%s", want.check, want.says, want.severity, text(report))
	}
}

// wantWhole: a finding says all that a reader needs.
func wantWhole(t *testing.T, f doctor.Finding) {
	t.Helper()
	if f.What == "" || f.Why == "" || f.Do == "" || f.Promise == "" {
		t.Errorf("something is not said: %+v", f)
	}
}

func text(report *doctor.Report) string {
	var b strings.Builder
	if err := report.Print(&b, true); err != nil {
		return fmt.Sprint(err)
	}
	return b.String()
}
