package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward/cmd/onceward/internal/doctor"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/sqlite"
)

// runDoctor runs the doctor as a user does.
func runDoctor(t *testing.T, args ...string) proctest.Result {
	t.Helper()
	command := proc.Self(runAsDemo, "1", append([]string{"doctor"}, args...)...)
	temporary := t.TempDir()
	command.Env = append(command.Env, "TMPDIR="+temporary)
	result := proctest.Run(t, command)
	wantEmpty(t, temporary)
	return result
}

// TestDoctor: what the doctor says, to people and to programs, and how it ends.
func TestDoctor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	run := runDoctor(t, "sqlite:"+path)
	for _, want := range []string{
		"WEAK  sqlite/permissions", "what     the permissions of", "why      ",
		"do       chmod 600 " + path, "promise  I9, L2 [16]",
	} {
		if run.Code != 7 || !strings.Contains(run.Stdout, want) || run.Stderr != "" {
			t.Errorf("exit status %d, and it does not say %q: %s%s", run.Code, want, run.Stdout, run.Stderr)
		}
	}
	if run := runDoctor(t, "--verbose", path); !strings.Contains(run.Stdout, "ok           sqlite/locks") {
		t.Errorf("it does not list what is in order: %s", run.Stdout)
	}
	var report doctor.Report
	run = runDoctor(t, path, "--json")
	if err := json.Unmarshal([]byte(run.Stdout), &report); err != nil || run.Code != 7 {
		t.Fatalf("exit status %d, %v: %s", run.Code, err, run.Stdout)
	}
	if found := report.Findings(); len(found) == 0 || found[0].Check != "sqlite/permissions" || len(report.Results) < 10 {
		t.Errorf("the report is %+v", report)
	}
}

// TestDoctorEnds: a healthy store, one that cannot be reached, a URL that cannot be read, and what was not checked.
func TestDoctorEnds(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t)
	for _, test := range []struct {
		code int
		says string
		args []string
	}{
		{0, "No findings.", []string{redis.URL()}},
		{2, "no store is called", []string{"oracle://localhost/shop"}},
		{2, "the store is not named", nil},
		{2, "cannot be read", []string{"redis://user:p%zz@localhost"}},
		{5, "there is no file", []string{filepath.Join(t.TempDir(), "none.db")}},
		{5, "connect", []string{"postgres://nobody@127.0.0.1:1/none?connect_timeout=1"}},
		{5, "connect", []string{"redis://127.0.0.1:1"}},
		{8, "3 not checked", []string{redis.URL(), "--metrics", "SERVED"}},
		{7, "1 finding; 3 not checked", []string{redis.URL(), "--metrics", "http://127.0.0.1:1/metrics"}},
		{7, `"check": "metrics/read"`, []string{redis.URL(), "--json", "--metrics", "http://127.0.0.1:1/metrics"}},
		{2, "some time", []string{redis.URL(), "--timeout", "0s"}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			for i, arg := range test.args {
				if arg == "SERVED" {
					test.args[i] = emptyMetrics(t)
				}
			}
			run := runDoctor(t, test.args...)
			if run.Code != test.code || !strings.Contains(run.Stdout+run.Stderr, test.says) {
				t.Errorf("exit status %d: %s%s", run.Code, run.Stdout, run.Stderr)
			}
			if strings.Contains(run.Stdout+run.Stderr, "p%zz") {
				t.Error("it shows a password")
			}
		})
	}
}

// emptyMetrics is where a service shows none.
func emptyMetrics(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	return s.URL
}
