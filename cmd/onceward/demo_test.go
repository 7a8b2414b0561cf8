package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// wantSound: a run of so many payments ended with nothing broken.
func wantSound(t *testing.T, run proctest.Result, payments int) {
	t.Helper()
	sound := regexp.MustCompile(fmt.Sprintf(`(?s)payments +%[1]d +%[1]d +\d+ +\d+ +0 +0 +0\s.*`+
		`refunds[ \d]* 0 +0 +0\s.*bookings[ \d]* 0 +0 +0\s.*`+
		`Answers that differed between retries of one key: 0\nOutcomes still unknown: 0\n\n`+
		`Verdict: every payment was charged once.*The same load and faults again:\n`+
		`  go run ./cmd/onceward demo --seed 5 --payments %[1]d`, payments))
	if run.Code != 0 || !sound.MatchString(run.Stdout) {
		t.Fatalf("exit status %d, and this is not a sound verdict:\n%s\n%s", run.Code, run.Stdout, run.Stderr)
	}
}

// wantFaults: a verdict is worth something only if something went wrong.
func wantFaults(t *testing.T, run proctest.Result, kinds ...string) {
	t.Helper()
	for _, kind := range kinds {
		if !regexp.MustCompile(`[1-9]\d* ` + kind).MatchString(run.Stdout) {
			t.Errorf("there was no fault of the kind %q:\n%s", kind, run.Stdout)
		}
	}
}

func TestEveryPaymentIsChargedOnce(t *testing.T) {
	t.Parallel()
	run := runDemo(t, "--payments", "150", "--seed", "5")
	wantSound(t, run, 150)
	wantFaults(t, run, "left before the answer", "cut off during the answer", "sent twice at once", "sent again after the answer",
		"(timeout|reset|error) before", "(timeout|reset|error) after", "webhook drop", "webhook duplicate")
}

// TestUnprotected shows that the load has teeth: the same without Onceward goes wrong.
func TestUnprotected(t *testing.T) {
	t.Parallel()
	run := runDemo(t, "--payments", "60", "--seed", "5", "--unprotected", "--processes", "2")
	verdict := regexp.MustCompile(`Verdict: [1-9]\d* payments were charged more than once, \d+ too many in all, EUR \d+\.\d\d too much`)
	if run.Code != 1 || !verdict.MatchString(run.Stdout) {
		t.Fatalf("exit status %d:\n%s", run.Code, run.Stdout)
	}
	for _, want := range []string{"would have cost customers EUR ", "--unprotected", "got different answers", "one is paused for 3s"} {
		if !strings.Contains(run.Stdout, want) {
			t.Errorf("the verdict does not say %q:\n%s", want, run.Stdout)
		}
	}
	if strings.Contains(run.Stdout, "lease") || !strings.Contains(run.Stderr, "this is what was to be shown") {
		t.Errorf("it speaks of a lease that there is not, or of something broken:\n%s\n%s", run.Stdout, run.Stderr)
	}
}

func TestProcessesAreKilledAndPaused(t *testing.T) {
	t.Parallel()
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2")
	wantSound(t, run, 60)
	wantFaults(t, run, "killed, 1 paused past its lease")
}

// TestDirIsKept runs twice in one directory: the second run counts only what is its own.
func TestDirIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		wantSound(t, runDemo(t, "--payments", "20", "--seed", "5", "--dir", dir), 20)
	}
	for _, name := range []string{"ledger.jsonl", "payments.db", "secret"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestDirInUse: two demos in one directory would spoil each other's ledger.
func TestDirInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startDemo(t, dir)
	run := runDemo(t, "--payments", "5", "--dir", dir)
	if run.Code != 1 || !strings.Contains(run.Stderr, "in use by another demo") || !strings.Contains(run.Stderr, "--dir") {
		t.Errorf("a second demo: exit status %d: %s", run.Code, run.Stderr)
	}
	first.kill()
	startDemo(t, dir)
}

// TestCommandLine: what cannot be done is said with what to do about it.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, test := range []struct {
		args string
		want string
	}{
		{"--in-flight maybe", "conflict"},
		{"--payments 0", "--payments must be at least 1"},
		{"--payments -5", "--payments must be at least 1"},
		{"--processes 0", "--processes"},
		{"--processes 2 --no-load", "--no-load"},
		{"--processes 2 --addr 127.0.0.1:0", "--addr"},
		{"--no-load --unprotected", "--unprotected"},
		{"--surprise", "unknown flag --surprise\nonceward demo --help shows"},
		{"--addr " + taken.Addr().String(), "--addr"},
		{"--no-load --addr " + taken.Addr().String(), "--addr"},
		{"--store postgres://nobody@" + taken.Addr().String() + "/none?sslmode=disable&connect_timeout=1", "--store"},
		{"--store mysql://localhost/shop", "--store"},
		{"--store sqlite:payments.db", "--dir"},
		{"--store sqlite:payments.db?front=redis://127.0.0.1:1/0", "--dir"},
		{"--store sqlite:/dev/null/payments.db --dir " + t.TempDir(), "--store"},
		{"--store postgres://nobody@127.0.0.1:1/none", "--store"},
		{"--dir /dev/null/data", "--dir"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			run := runDemo(t, strings.Fields(test.args)...)
			want := exitFailed
			if test.args == "--in-flight maybe" || test.args == "--surprise" {
				want = exitUsage // what the parser refuses
			}
			if run.Code != want || !strings.Contains(run.Stderr, test.want) {
				t.Errorf("exit status %d, and the error does not name %s: %s", run.Code, test.want, run.Stderr)
			}
			if strings.Count(run.Stderr, "dial error") > 1 || strings.Count(run.Stderr, "failed to connect") > 1 {
				t.Errorf("the error is said more than once: %s", run.Stderr)
			}
		})
	}
}

// TestOtherCommands: what people type first at a program that they do not know.
func TestOtherCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, want string
		status     int
	}{
		{"", "Usage: onceward <command>", 0},
		{"help", "Usage: onceward <command>", 0},
		{"help demo", "Usage: onceward demo", 0},
		{"demo --help", "makes a schema of its own", 0},
		{"version", "onceward", 0},
		{"--version", "onceward", 0},
		{"dmo", "onceward --help shows", 2},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			run := proctest.Run(t, proc.Self(runAsDemo, "1", strings.Fields(test.args)...))
			text := strings.Join(strings.Fields(run.Stdout+run.Stderr), " ")
			if run.Code != test.status || !strings.Contains(text, test.want) {
				t.Errorf("exit status %d: %s", run.Code, text)
			}
		})
	}
}

// TestNegativeNumbers: a negative number belongs to the flag before it, but not behind --.
func TestNegativeNumbers(t *testing.T) {
	t.Parallel()
	got := strings.Join(joinNegative([]string{"--limit", "-1", "--", "key", "--level", "-2"}), " ")
	if want := "--limit=-1 -- key --level -2"; got != want {
		t.Errorf("the command line is read as %q, want %q", got, want)
	}
}
