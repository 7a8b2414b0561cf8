package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/node"
	"github.com/onceward/onceward/lab/chaos/internal/world"
)

// The test binary is also the nodes and the providers of the runs that it makes.
func TestMain(m *testing.M) {
	if ran, err := node.Main(); ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(servers.Main(m))
}

// TestShortRun lets each fault happen on SQLite for twenty seconds, with a fixed seed. `make test-all` does so on PostgreSQL too, and
// lets some faults happen on the stores with Redis. `make chaos` has all faults on all stores.
func TestShortRun(t *testing.T) {
	for _, c := range []struct {
		store string
		only  []string
	}{
		{"sqlite", nil},
		{"postgres", nil},
		{"redis", []string{"database-kill", "database-reply-lost", "server-kill", "server-pause"}},
		{"tiered", []string{"front-kill", "front-restore", "server-kill"}},
	} {
		t.Run(c.store, func(t *testing.T) {
			length := 20 * time.Second
			if c.store != "sqlite" {
				nightly.Only(t, "all promises are checked on SQLite")
				length = 8 * time.Second
			}
			shortRun(t, c.store, length, c.only)
		})
	}
}

// TestShortRunOnEngines lets some faults happen on each of the engines that take longer to start.
func TestShortRunOnEngines(t *testing.T) {
	nightly.Only(t, "it starts a fleet")
	for store, only := range map[string][]string{
		"mysql":       {"database-kill", "commit-reply-cut", "server-kill", "server-pause"},
		"dynamodb":    {"database-kill", "service-reply-lost", "service-request-late", "server-kill", "server-pause"},
		world.Galera:  {"member-kill", "member-cut-off", "server-kill", "server-pause"},
		world.Patroni: {"primary-kill", "server-kill", "server-pause"},
	} {
		t.Run(store, func(t *testing.T) { shortRun(t, store, 10*time.Second, only) })
	}
}

// shortRun runs on a store, with some or all faults. On a machine that is so slow that a run has too little to show it
// runs again, with the next seed.
func shortRun(t *testing.T, store string, length time.Duration, only []string) {
	o := options{
		Store: store, Time: length, Seed: 20261115, Clients: 6, Every: 450 * time.Millisecond,
		Settle: await.Limit, Only: only,
	}
	var operations, overlapping, replays, unknown int
	for range 10 {
		var out bytes.Buffer
		r, err := o.run(t.Context(), &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		r.print(&out)
		if len(r.violations) > 0 {
			t.Fatalf("promises were broken:\n%s", out.String())
		}
		operations, overlapping = operations+r.counts.Operations, overlapping+r.counts.Overlapping
		replays, unknown = replays+r.counts.Replays, unknown+r.counts.Unknown
		if operations >= 40 && overlapping >= 10 && replays >= 5 && unknown >= 1 {
			return
		}
		t.Logf("the run had too little to show:\n%s", out.String())
		o.Seed++
	}
	t.Error("no run had enough to show")
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-store floppy": `"floppy"`,
		"-time soon":    "soon",
		"-faults plague -store sqlite -clocks=false -time 1s": "server-kill",
	} {
		var out bytes.Buffer
		err := chaos(t.Context(), strings.Fields(args), &out)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("chaos %s: %v, want an error that says %s", args, err, want)
		}
	}
}

// TestShiftedClock builds and runs a program whose clock is an hour ahead, or behind.
func TestShiftedClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nimport \"time\"\n\nfunc main() { println(time.Now().Unix()) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := buildShifted(t.Context(), dir, source)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{0, 3600, -3600} {
		run := exec.CommandContext(t.Context(), program)
		run.Env = append(os.Environ(), fmt.Sprintf("%s=%d", world.ShiftVariable, offset))
		said, err := run.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		at, err := strconv.ParseInt(strings.TrimSpace(string(said)), 10, 64)
		if off := at - time.Now().Unix() - offset; err != nil || off < -600 || off > 600 {
			t.Errorf("with an offset of %d s its clock says %s, which is %d s away from that (%v)", offset, said, off, err)
		}
	}
}

// TestShiftNow: the place where the clock is read is found in the Go that runs the tests.
func TestShiftNow(t *testing.T) {
	t.Parallel()
	root, err := goCommand(t.Context(), "env", "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(root + "/src/time/time.go")
	if err != nil {
		t.Fatal(err)
	}
	if shifted, err := shiftNow(string(source)); err != nil || !strings.Contains(shifted, "clockOffset") {
		t.Errorf("the time package was not changed: %v", err)
	}
	if _, err := shiftNow("package time"); err == nil || !strings.Contains(err.Error(), "-clocks=false") {
		t.Errorf("an unknown time package gives %v, want an error that says what to do", err)
	}
}
