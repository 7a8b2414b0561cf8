// Package proctest starts processes that live as long as their test, and fails the test if
// they do not behave as expected. It is the part of internal/proc that imports testing.
package proctest

import (
	"bytes"
	"errors"
	"os/exec"
	"testing"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/proc"
)

// Process is a process of a test.
type Process struct {
	*proc.Process
	t testing.TB
}

// Start starts a command, and kills it at the end of the test. If
// the test has failed, the standard error of the command is shown.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Errorf("kill %s: %v", cmd.Path, err)
		}
		if said := p.Stderr(); t.Failed() && said != "" {
			t.Logf("process %d wrote to its standard error:\n%s", p.PID(), said)
		}
	})
	return &Process{Process: p, t: t}
}

// Hear returns the next line of the process, which must begin with the prefix.
func (p *Process) Hear(prefix string) string {
	p.t.Helper()
	line, err := p.Expect(prefix, await.Limit)
	if err != nil {
		p.t.Fatal(err)
	}
	return line
}

// Tell writes a line to the process.
func (p *Process) Tell(line string) {
	p.t.Helper()
	if err := p.Say(line); err != nil {
		p.t.Fatalf("write %q to process %d: %v", line, p.PID(), err)
	}
}

// Rest waits until the process has ended without being killed here, and returns the lines that were not read.
func (p *Process) Rest() (lines []string) {
	p.t.Helper()
	for {
		line, err := p.Line(await.Limit)
		if errors.Is(err, proc.ErrRunning) {
			p.t.Fatal(err)
		}
		if err != nil {
			return lines
		}
		lines = append(lines, line)
	}
}

// Result is the result of a process that has ended.
type Result struct {
	// Stdout and Stderr are the output of the process.
	Stdout, Stderr string
	// Code is the exit status, or -1 if a signal ended the process.
	Code int
}

// Run runs a command to its end, without input. The command is killed if the test ends before.
func Run(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(nil), &out, &said
	p, err := proc.Start(cmd)
	if err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	select {
	case <-p.Done():
	case <-t.Context().Done():
		t.Fatalf("%s was still running at the end of the test: %v", cmd.Path, p.Kill())
	}
	return Result{Stdout: out.String(), Stderr: said.String(), Code: p.ExitCode()}
}
