package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/proc/proctest"
)

// program is the path of the program, built as `go run -C demo .` builds it: with the go.work of this directory.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "onceward-demo-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "demo")
	if output, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the program does not build: %v: %s\n", err, output)
		return 1
	}
	return m.Run()
}

// TestWorkspace: the go command takes the go.work of this directory, and not the one above with all modules.
func TestWorkspace(t *testing.T) {
	t.Parallel()
	work := proctest.Run(t, exec.Command("go", "env", "GOWORK"))
	if here, err := filepath.Abs("go.work"); err != nil || strings.TrimSpace(work.Stdout) != here {
		t.Errorf("the go command uses %q, want the go.work of the demo", work.Stdout)
	}
}

// TestDemo runs the program once as a user does, and once with processes that are killed.
func TestDemo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string // in the middle of the output
		end  string // of the line that repeats the run
		code int
	}{
		"protected": {
			[]string{"--payments", "150", "--seed", "5"},
			`payments +150 +150 +\d+ +\d+ +0 +0 +0\s.*Verdict: every payment was charged once, and every client was told so\.`,
			`--seed 5 --payments 150`, 0,
		},
		"unprotected": {
			[]string{"-payments=60", "-seed=5", "-unprotected"},
			`Verdict: [1-9]\d* payments were charged more than once`,
			`--seed 5 --payments 60 --unprotected`, exitFailed,
		},
		"processes": {
			[]string{"--payments", "60", "--seed", "5", "--processes", "2"},
			`[1-9]\d* killed, 1 paused past its lease.*Verdict: every payment was charged once`,
			`--seed 5 --payments 60 --processes 2`, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := exec.Command(program, test.args...)
			temporary := t.TempDir()
			command.Env = append(os.Environ(), "TMPDIR="+temporary)
			run := proctest.Run(t, command)
			want := regexp.MustCompile(`(?s)^Onceward demo: .*` + test.want + `.*\nThe same load and faults again:\n  ` +
				regexp.QuoteMeta(program) + ` ` + regexp.QuoteMeta(test.end) + `\n`)
			if run.Code != test.code || !want.MatchString(run.Stdout) {
				t.Errorf("exit code %d, want %d, and the output is not as it should be:\n%s\n%s",
					run.Code, test.code, run.Stdout, run.Stderr)
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("the run left %v behind, %v", left, err)
			}
		})
	}
}

// TestCommandLine: what cannot be done is refused with the flag's name, and nothing is begun.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	for args, test := range map[string]struct {
		want string
		code int
	}{
		"--help":                 {"without Onceward, to see", 0},
		"--surprise":             {"-surprise", exitUsage},
		"surprise":               {`unknown argument "surprise"`, exitUsage},
		"--payments 0":           {"--payments must be at least 1", exitFailed},
		"--in-flight maybe":      {"--in-flight must be conflict, wait or accepted", exitFailed},
		"--processes 2 --addr x": {"--addr", exitFailed},
	} {
		run := proctest.Run(t, exec.Command(program, strings.Fields(args)...))
		if run.Code != test.code || !strings.Contains(run.Stderr, test.want) || run.Stdout != "" {
			t.Errorf("%s: exit code %d, %s%s; want %d and %q", args, run.Code, run.Stdout, run.Stderr, test.code, test.want)
		}
	}
}

// TestServesWithoutMetrics: the guide of a program without a monitor names no metrics.
func TestServesWithoutMetrics(t *testing.T) {
	t.Parallel()
	command := exec.Command(program, "--no-load", "--addr", "127.0.0.1:0", "--dir", t.TempDir())
	process := proctest.Start(t, command)
	var guide bytes.Buffer
	for line := ""; !strings.Contains(line, "Ctrl-C"); line = process.Hear("") {
		guide.WriteString(line + "\n")
	}
	if text := guide.String(); strings.Contains(text, "metrics") || !strings.Contains(text, "Onceward demo: ") ||
		!strings.Contains(text, "curl -s -i http://127.0.0.1:") {
		t.Errorf("the guide is:\n%s", text)
	}
}
