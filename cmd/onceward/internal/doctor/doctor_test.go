package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(watchdog.Settling(servers.Tests{M: m}),
		// The client of a cluster closes connections that it does not need any more five seconds later.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

// examine runs the doctor, with limits that a slow machine does not exceed.
func examine(t *testing.T, url string, c doctor.Config) *doctor.Report {
	t.Helper()
	report, err := doctor.Examine(t.Context(), url, doctor.Patient(c))
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

// TestInterrupted: nothing is left behind by a doctor that was interrupted in the middle.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	s := servers.NewRedis(t)
	url := redisLiar(t, s.URL(), func(command []string) []string {
		if command[0] == "PUBLISH" { // some of its keys are there
			interrupt()
			return []string{"PUBSUB", "NUMPAT"}
		}
		return command
	})
	if _, err := doctor.Examine(ctx, url, doctor.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if left, err := s.Do(t.Context(), "DBSIZE"); err != nil || left != int64(0) {
		t.Errorf("left behind: %v keys, %v", left, err)
	}

	ctx, interrupt = context.WithCancel(t.Context())
	d := newDatabase(t, servers.Postgres(t))
	url = postgresLiar(t, d.url(t), func(sql string) string {
		if strings.Contains(sql, "pg_try_advisory_lock") { // another connection has the lock
			interrupt()
		}
		return sql
	})
	if _, err := doctor.Examine(ctx, url, doctor.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	await.That(t, "the doctor's connections have ended", func() (none bool) {
		err := d.owner.QueryRow(t.Context(), `SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = $1`,
			d.role).Scan(&none)
		return err == nil && none
	})

	ctx, interrupt = context.WithCancel(t.Context())
	file := newFile(t)
	defer time.AfterFunc(20*time.Millisecond, interrupt).Stop()
	for { // until it was interrupted in the middle of something
		if _, err := doctor.Examine(ctx, file, doctor.Config{}); err != nil {
			break
		}
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestNoPasswords: the report is for tickets and chats.
func TestNoPasswords(t *testing.T) {
	t.Parallel()
	s := servers.NewRedis(t)
	url := strings.Replace(redisUser(t, s), "redis://", "redis+cluster://", 1)
	_, err := doctor.Examine(t.Context(), url, doctor.Config{})
	if err != nil && strings.Contains(err.Error(), "password") {
		t.Errorf("an error shows the password: %v", err)
	}
	for _, url := range []string{
		"postgres://app:password@host/db", "postgres://host/db?password=password&sslmode=disable",
		"redis+cluster://app:password@a:1,b:2/0",
		"redis+sentinel://a:1,b:2/name?sentinel_password=password", "postgres://h/d?front=redis://app:password@host/0",
	} {
		if shown := doctor.Redacted(url); strings.Contains(strings.ReplaceAll(shown, "password=", ""), "password") {
			t.Errorf("%s is shown as %s", url, shown)
		}
	}
}

// TestDocumentedChecks: the tables of the guide have the checks of the code. Each finding shows its reason and promise.
func TestDocumentedChecks(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	engine := ""
	for _, c := range doctor.Checks() {
		if of, _, _ := strings.Cut(c.Name, "/"); of != engine {
			engine = of
			want.Reset()
		}
		fmt.Fprintf(&want, "| `%s` | %s |\n", c.Name, c.Tries)
		if c.Why == "" || c.Promise == "" {
			t.Errorf("%s has no reason or no promise for the report", c.Name)
		}
		if !strings.Contains(string(guide), want.String()) {
			t.Fatalf("docs/doctor.md has no rows, in this order:\n%s", want.String())
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `[a-z]+/").FindAllString(string(guide), -1)
	if len(rows) != len(doctor.Checks()) {
		t.Errorf("docs/doctor.md lists %d checks, and there are %d", len(rows), len(doctor.Checks()))
	}
}
