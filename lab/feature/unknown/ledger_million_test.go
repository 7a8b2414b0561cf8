package unknown_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// TestAMillionEntries compares a million entries a side in a process of its own, which is built without the race
// detector, and holds its memory to 64 MiB: what the runtime took from the system, and where the system says so, the
// most that was ever resident.
func TestAMillionEntries(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it builds a program and compares two million entries; reconcile/ledger tests the same with few")
	program := filepath.Join(t.TempDir(), "million.exe")
	if build := proctest.Run(t, exec.Command("go", "build", "-race=false", "-o", program, "./million")); build.Code != 0 {
		t.Fatalf("%s", build.Stderr)
	}
	run := proctest.Run(t, exec.Command(program))
	if run.Code != 0 {
		t.Fatalf("exit status %d\n%s", run.Code, run.Stderr)
	}
	want := `finding: missing here provider charge 000000
finding: differs  charge 000001
finding: missing there local charge 004999
finding: duplicate provider charge 005000
finding: missing here provider charge 005001
finding: differs  charge 123456
finding: differs  charge 500000
finding: missing there local charge 700000
finding: missing here provider charge 999998
finding: duplicate local charge 999999
read: 999999 999998
`
	memory, found := strings.CutPrefix(run.Stdout, want)
	if !found {
		t.Fatalf("got\n%s\nwant\n%s", run.Stdout, want)
	}
	measured := 0
	for line := range strings.Lines(memory) {
		var what string
		var kib int64
		if n, err := fmt.Sscanf(line, "%s %d KiB", &what, &kib); n != 2 {
			t.Fatalf("%q: %v", line, err)
		}
		measured++
		t.Logf("%s %.1f MiB", what, float64(kib)/1024)
		if kib >= 64<<10 {
			t.Errorf("%s %.1f MiB, want less than 64", what, float64(kib)/1024)
		}
	}
	if measured == 0 {
		t.Error("no memory was measured")
	}
}
