package main

import (
	"os/exec"
	"testing"
	"time"
)

// TestTreeTime holds the processor time of a process to what it and its children took, those that have ended included.
func TestTreeTime(t *testing.T) {
	// A shell that has a child work, waits for a line, works itself, and then stays.
	const work = `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done`
	cmd := exec.Command("sh", "-c", `sh -c '`+work+`'; echo ended; read -r line; `+work+`; echo worked; read -r line`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	took := func(want string) time.Duration {
		t.Helper()
		word := make([]byte, len(want))
		if _, err := out.Read(word); err != nil || string(word) != want {
			t.Fatalf("the shell said %q, %v; want %q", word, err, want)
		}
		spent, err := treeTime(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return spent
	}
	byChild := took("ended\n")
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	both := took("worked\n")
	if byChild < 20*time.Millisecond || both < byChild+byChild/3 {
		t.Errorf("the child took %s, both %s", byChild, both)
	}
}

// TestProcessorTimeHere grows with work.
func TestProcessorTimeHere(t *testing.T) {
	before, err := measureProcessors(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := measureProcessors(t.Context(), nil)
		if err != nil || now.server != 0 {
			t.Fatalf("%+v, %v", now, err)
		}
		if now.here > before.here {
			return
		}
	}
}
