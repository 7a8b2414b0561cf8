//go:build unix

package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
)

// partVariable makes the test binary a process that plays a part instead of running tests.
const partVariable = "ONCEWARD_PROC_TEST_PART"

const limit = await.Limit

func TestMain(m *testing.M) {
	switch part := os.Getenv(partVariable); part {
	case "":
		goleak.VerifyTestMain(watchdog.Settling(m))
	case "echo": // until the end of its input
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(in.Text())
		}
		fmt.Print("the end")
		fmt.Fprintln(os.Stderr, "goodbye")
		os.Exit(3)
	case "parent": // of one process, which is a parent too
		child, err := Start(Self(partVariable, "leaf"))
		if err != nil {
			panic(err)
		}
		line, err := child.Line(limit)
		fmt.Println(os.Getpid(), line, err)
		select {}
	case "leaf": // until the end of its input
		fmt.Println(os.Getpid())
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

func start(t *testing.T, part string) *Process {
	t.Helper()
	p, err := Start(Self(partVariable, part))
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill()) })
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLinesGoBothWays(t *testing.T) {
	p := start(t, "echo")
	for _, line := range []string{"one", "", "three"} {
		must(t, p.Say(line))
		if got, err := p.Expect(line, limit); err != nil || got != line {
			t.Errorf("got %q, %v, want %q", got, err, line)
		}
	}
	must(t, p.Say("four"))
	if _, err := p.Expect("five", limit); err == nil || !strings.Contains(err.Error(), `"four"`) {
		t.Errorf("err = %v, want what was said", err)
	}
	if _, err := p.Line(10 * time.Millisecond); !errors.Is(err, ErrRunning) {
		t.Errorf("err = %v, want ErrRunning", err)
	}
	exit := (*exec.ExitError)(nil)
	if err := p.End(limit); !errors.As(err, &exit) || p.ExitCode() != 3 {
		t.Errorf("it ended with %v, %d, want 3", err, p.ExitCode())
	}
	if line, err := p.Line(limit); line != "the end" || err != nil {
		t.Errorf("the last line is %q, %v", line, err)
	}
	if _, err := p.Line(limit); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "goodbye") {
		t.Errorf("err = %v, want io.EOF and the standard error", err)
	}
	must(t, p.Kill()) // of one that has ended
	must(t, p.Pause())
}

func TestPausedProcess(t *testing.T) {
	p := start(t, "echo")
	must(t, p.Pause())
	must(t, p.Say("hello"))
	if line, err := p.Line(50 * time.Millisecond); !errors.Is(err, ErrRunning) {
		t.Errorf("a paused process said %q, %v", line, err)
	}
	must(t, p.Resume())
	if line, err := p.Line(limit); line != "hello" || err != nil {
		t.Errorf("after Resume: %q, %v", line, err)
	}
	must(t, p.Pause())
	if err := p.Wait(10 * time.Millisecond); !errors.Is(err, ErrRunning) || p.ExitCode() != -1 {
		t.Errorf("err = %v, want ErrRunning", err)
	}
	must(t, p.Kill())
	if !p.Ended() || p.ExitCode() != -1 {
		t.Errorf("a killed process has status %d", p.ExitCode())
	}
}

// startTree starts a process that has started another, and returns the ids of both.
func startTree(t *testing.T) (p *Process, pids []int) {
	t.Helper()
	p = start(t, "parent")
	line, err := p.Line(limit)
	must(t, err)
	pids = make([]int, 2)
	if _, err := fmt.Sscan(line, &pids[0], &pids[1]); err != nil || pids[0] != p.PID() {
		t.Fatalf("the parent said %q: %v", line, err)
	}
	return p, pids
}

func TestTreeIsPausedAndKilledAsAWhole(t *testing.T) {
	p, pids := startTree(t)
	if below, err := Descendants(pids[0]); err != nil || len(below) != 1 || below[0] != pids[1] {
		t.Errorf("below are %v, %v, want %d", below, err, pids[1])
	}
	must(t, p.PauseTree())
	must(t, awaitStates(func(state byte) bool { return state == 'T' }, pids...))
	must(t, p.ResumeTree())
	must(t, awaitStates(func(state byte) bool { return state != 'T' && !isGone(state) }, pids...))
	must(t, p.KillTree())
	must(t, AwaitGone(pids...))
	must(t, p.KillTree())
	if err := p.PauseTree(); err == nil {
		t.Error("a process was paused that has ended")
	}
}

// TestChildrenEndWithTheirParent: also if it is killed.
func TestChildrenEndWithTheirParent(t *testing.T) {
	p, pids := startTree(t)
	must(t, p.Kill())
	must(t, AwaitGone(pids...))
}

func TestProgramThatIsNotThere(t *testing.T) {
	if p, err := Start(exec.Command("/no/such/program")); err == nil {
		t.Error("started", p.Kill())
	}
}

func TestOnlyTheEndIsKept(t *testing.T) {
	var said tail
	for range 3 {
		_, _ = said.Write([]byte(strings.Repeat("x", mostOutput/2) + "end"))
	}
	if text := said.String(); len(text) != mostOutput || !strings.HasSuffix(text, "end") {
		t.Errorf("%d bytes are kept", len(text))
	}
}
