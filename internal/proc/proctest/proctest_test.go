package proctest_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// partVariable makes the test binary a process that says what the variable holds and what it is told.
const partVariable = "ONCEWARD_PROCTEST_TEST_PART"

func TestMain(m *testing.M) {
	said := os.Getenv(partVariable)
	if said == "" {
		os.Exit(m.Run())
	}
	fmt.Println(said)
	var heard string
	_, _ = fmt.Scanln(&heard) // nothing is heard if there is no input
	fmt.Printf("heard %q\n", heard)
	fmt.Fprint(os.Stderr, "sorry")
	os.Exit(4)
}

func TestProcessOfATest(t *testing.T) {
	p := proctest.Start(t, proc.Self(partVariable, "ready"))
	if line := p.Hear("rea"); line != "ready" {
		t.Errorf("heard %q", line)
	}
	p.Tell("go")
	if rest := p.Rest(); !slices.Equal(rest, []string{`heard "go"`}) || p.ExitCode() != 4 {
		t.Errorf("the rest is %q, the exit status %d", rest, p.ExitCode())
	}
}

// TestProcessEndsWithItsTest: also one that waits for a line for ever.
func TestProcessEndsWithItsTest(t *testing.T) {
	var p *proctest.Process
	t.Run("test", func(t *testing.T) {
		p = proctest.Start(t, proc.Self(partVariable, "ready"))
		p.Hear("ready")
	})
	if !p.Ended() {
		t.Error("the process runs on")
	}
}

func TestRunToTheEnd(t *testing.T) {
	want := proctest.Result{Stdout: "hello\nheard \"\"\n", Stderr: "sorry", Code: 4}
	if got := proctest.Run(t, proc.Self(partVariable, "hello")); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
