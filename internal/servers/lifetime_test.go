package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// victimVariable makes this program start a server and wait to be killed; it says whether to freeze the server first.
const victimVariable = "ONCEWARD_SERVICETEST_VICTIM"

func beVictim() {
	server, err := StartPostgres(context.Background())
	if err == nil && os.Getenv(victimVariable) == "frozen" {
		err = server.Pause()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	children, _ := childrenOf(server.proc.pid)
	fmt.Println(workspace.path)
	fmt.Println(server.proc.pid, strings.Trim(fmt.Sprint(children), "[]"))
	select {}
}

// A server must not outlive a test process that had no time to stop it, and the next process removes its files.
func TestServerEndsWithItsProcess(t *testing.T) {
	for _, how := range []string{"running", "frozen"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel() // a frozen server takes five seconds to give up waiting for its processes
			victim, dir, pids := startVictim(t, how)
			must(t, victim.Process.Kill())
			_ = victim.Wait() // it was killed
			must(t, waitStates(isGone, pids...))
			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("the directory should be left over: %v", err)
			}
			removeLeftovers(filepath.Dir(dir))
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the next process left the directory: %v", err)
			}
		})
	}
}

func startVictim(t *testing.T, how string) (victim *exec.Cmd, dir string, pids []int) {
	t.Helper()
	victim = exec.Command(os.Args[0])
	parent := reachableDir(t) // of its own, lest another process clears it while the test looks
	victim.Env = append(os.Environ(), victimVariable+"="+how, "TMPDIR="+parent)
	out, err := victim.StdoutPipe()
	must(t, err)
	must(t, victim.Start())
	t.Cleanup(func() { _ = victim.Process.Kill() }) // unless that was the test
	lines := bufio.NewScanner(out)
	lines.Scan()
	dir = lines.Text()
	lines.Scan()
	for _, word := range strings.Fields(lines.Text()) {
		var pid int
		_, err := fmt.Sscan(word, &pid)
		must(t, err)
		pids = append(pids, pid)
	}
	if len(pids) < 3 {
		t.Fatalf("the victim said %q and %q", dir, lines.Text())
	}
	return victim, dir, pids
}

// reachableDir is a directory that the user that the server runs as can pass through, unlike t.TempDir.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "servers-*")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func TestOnlyLeftoversAreRemoved(t *testing.T) {
	parent := t.TempDir()
	ours := fmt.Sprintf("%s%d-1", dirPrefix, os.Getpid())
	keep := []string{ours, dirPrefix + "x-1", dirPrefix + "0-1", dirPrefix + "-5-1", dirPrefix + "99999999", "else-99999999-1"}
	gone := dirPrefix + "99999999-1"
	for _, name := range append(keep, gone) {
		must(t, os.Mkdir(filepath.Join(parent, name), 0o700))
	}
	removeLeftovers(parent)
	left, err := os.ReadDir(parent)
	must(t, err)
	if len(left) != len(keep) {
		t.Errorf("left %v, want %v", left, keep)
	}
}

func TestCopyTree(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	must(t, os.MkdirAll(filepath.Join(from, "a", "empty"), 0o700))
	must(t, os.WriteFile(filepath.Join(from, "a", "file"), []byte("text"), 0o600))
	must(t, owner{}.copyTree(from, to))
	text, err := os.ReadFile(filepath.Join(to, "a", "file"))
	must(t, err)
	if string(text) != "text" {
		t.Errorf("the copy holds %q", text)
	}
	if info, err := os.Stat(filepath.Join(to, "a", "empty")); err != nil || !info.IsDir() {
		t.Errorf("the empty directory: %v", err)
	}
	if err := (owner{}).copyTree(from, to); err == nil {
		t.Error("a copy was made over another")
	}
}
