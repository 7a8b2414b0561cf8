package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMutantsAreCaught builds nodes that make the mistakes which other libraries were seen to make, one at a time, and
// demands that the checker finds each within a minute, by the promise that it breaks (I14).
func TestMutantsAreCaught(t *testing.T) {
	program := filepath.Join(t.TempDir(), "chaos")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "onceward_mutants", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, m := range []struct{ name, store, faults, clients, length, breaks string }{
		// An old owner shows only where somebody else took over: the more are under way when a server stops, the surer.
		{"no-fence", "sqlite", "server-pause", "64", "6s", "violation of I6:"},
		{"no-intent", "sqlite", "server-kill", "16", "4s", "violation of I1:"},
		{"early-reap", "sqlite", "request-cut", "16", "4s", "violation of I1:"},
		{"open-reap", "sqlite", "provider-cut", "16", "4s", "violation of I1:"},
		{"check-then-insert", "sqlite", "request-cut", "16", "4s", "violation of I1:"},
		{"blind-commit", "postgres", "commit-reply-cut", "16", "5s", "violation of I1:"},
	} {
		t.Run(m.name, func(t *testing.T) {
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for {
				run := exec.CommandContext(within, program, "-mutant", m.name, "-store", m.store, "-faults", m.faults,
					"-time", m.length, "-settle", "2s", "-every", "600ms", "-clients", m.clients, "-clocks=false")
				run.Cancel = func() error { return run.Process.Signal(os.Interrupt) } // its nodes end in order
				run.WaitDelay = 20 * time.Second
				out, err := run.CombinedOutput()
				if strings.Contains(string(out), m.breaks) {
					return
				}
				if within.Err() != nil {
					t.Fatalf("it was not caught within a minute (%v):\n%s", err, out)
				}
			}
		})
	}
}
