package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/servicetest"
)

// wantSound: a run of so many payments ended with nothing broken.
func wantSound(t *testing.T, run finished, payments int) {
	t.Helper()
	sound := regexp.MustCompile(fmt.Sprintf(`(?s)payments +%[1]d +%[1]d +\d+ +\d+ +0 +0\s.*refunds.* 0 +0\s.*bookings.* 0 +0\s.*`+
		`Answers that differed between retries of one key: 0\nOutcomes still unknown: 0\n\n`+
		`Verdict: every payment was charged once.*--seed 5`, payments))
	if run.status != 0 || !sound.MatchString(run.out) {
		t.Fatalf("exit status %d, and this is not a sound verdict:\n%s\n%s", run.status, run.out, run.errors)
	}
}

// wantFaults: a verdict is worth something only if something went wrong.
func wantFaults(t *testing.T, run finished, kinds ...string) {
	t.Helper()
	for _, kind := range kinds {
		if !regexp.MustCompile(`[1-9]\d* ` + kind).MatchString(run.out) {
			t.Errorf("there was no fault of the kind %q:\n%s", kind, run.out)
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
	run := runDemo(t, "--payments", "60", "--seed", "5", "--unprotected")
	verdict := regexp.MustCompile(`Verdict: [1-9]\d* payments were charged more than once, EUR \d+\.\d\d too much`)
	if run.status != 1 || !verdict.MatchString(run.out) {
		t.Fatalf("exit status %d:\n%s", run.status, run.out)
	}
	for _, want := range []string{"would have cost customers EUR ", "--unprotected", "got different answers"} {
		if !strings.Contains(run.out, want) {
			t.Errorf("the verdict does not say %q:\n%s", want, run.out)
		}
	}
}

func TestProcessesAreKilledAndPaused(t *testing.T) {
	t.Parallel()
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2")
	wantSound(t, run, 60)
	wantFaults(t, run, "killed, 1 paused past the lease")
}

func TestOnPostgres(t *testing.T) {
	t.Parallel()
	url := servicetest.Postgres(t).SchemaURL(t)
	run := runDemo(t, "--payments", "60", "--seed", "5", "--processes", "2", "--store", url)
	wantSound(t, run, 60)
	if !strings.Contains(run.out, "on PostgreSQL") {
		t.Errorf("it ran somewhere else:\n%s", run.out)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	left := 0
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'onceward\_demo\_%'`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d schemas are left behind, %v", left, err)
	}
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

// running is a demo in full swing.
type running struct {
	command   *exec.Cmd
	out       *bufio.Reader
	errors    bytes.Buffer
	temporary string
	// addresses are those of its processes.
	addresses []string
}

// startLoad starts a demo with processes, and returns when the clients are at it.
func startLoad(t *testing.T) *running {
	t.Helper()
	var r running
	r.command, r.temporary = demoProcess(t, "--processes", "2")
	r.command.Stderr = &r.errors
	out, err := r.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.command.Process.Kill() }) // it may have ended
	r.out = bufio.NewReader(out)
	for {
		line, err := r.out.ReadString('\n')
		if err != nil {
			t.Fatalf("the demo ended: %v", err)
		}
		if urls, found := strings.CutPrefix(line, "Served at "); found {
			r.addresses = strings.Fields(strings.ReplaceAll(urls, "http://", ""))
		}
		if strings.Contains(line, "answered") {
			return &r
		}
	}
}

// end sends a signal, and waits until nothing of the demo runs any more.
func (r *running) end(t *testing.T, sig os.Signal) (status int) {
	t.Helper()
	if err := r.command.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.out) // what it says meanwhile is not looked at
	_ = r.command.Wait()              // nor how it ended, but for the status
	if len(r.addresses) != 2 {
		t.Fatalf("the demo named the processes %q, want two", r.addresses)
	}
	for _, address := range r.addresses {
		await(t, "a process of the demo to end", func() bool {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		})
	}
	return r.command.ProcessState.ExitCode()
}

func TestInterruptLoad(t *testing.T) {
	t.Parallel()
	r := startLoad(t)
	if status := r.end(t, os.Interrupt); status != 1 || !strings.Contains(r.errors.String(), "interrupted, no verdict") {
		t.Errorf("exit status %d: %s", status, r.errors.String())
	}
	wantEmpty(t, r.temporary)
}

// TestChildrenEndWithTheirParent: also if it has no time to say goodbye.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	startLoad(t).end(t, os.Kill)
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
		{"--payments 0", "--payments"},
		{"--processes 0", "--processes"},
		{"--processes 2 --no-load", "--no-load"},
		{"--processes 2 --addr 127.0.0.1:0", "--addr"},
		{"--no-load --unprotected", "--unprotected"},
		{"--surprise", "--surprise"},
		{"--addr " + taken.Addr().String(), "--addr"},
		{"--no-load --addr " + taken.Addr().String(), "--addr"},
		{"--store postgres://nobody@" + taken.Addr().String() + "/none?sslmode=disable&connect_timeout=1", "--store"},
		{"--store mysql://localhost/shop", "--store"},
		{"--store sqlite:payments.db", "--dir"},
		{"--store sqlite:/dev/null/payments.db --dir " + t.TempDir(), "--store"},
		{"--dir /dev/null/data", "--dir"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			run := runDemo(t, strings.Fields(test.args)...)
			if run.status != 1 || !strings.Contains(run.errors, test.want) {
				t.Errorf("exit status %d, and the error does not name %s: %s", run.status, test.want, run.errors)
			}
		})
	}
}
