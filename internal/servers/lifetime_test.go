package servers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// victimVariable makes this program start a server and wait to be killed; it says which, and whether to pause it first.
const victimVariable = "ONCEWARD_SERVERS_TEST_VICTIM"

func TestMain(m *testing.M) {
	// A test starts this program again to see what is left when it is killed.
	if kind := os.Getenv(victimVariable); kind != "" {
		if err := beVictim(kind); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	// How servers are started is what is tested here, so the shared servers of a whole run are left alone.
	for _, variable := range []string{
		postgresVariable, mariadbVariable, redisVariable, dynamodbVariable, rabbitmqVariable, privateVariable,
	} {
		if err := os.Unsetenv(variable); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(Tests{M: m})
}

func beVictim(kind string) error {
	var pids []int
	switch kind {
	case "rabbitmq":
		s, err := StartRabbitMQ(context.Background())
		if err != nil {
			return err
		}
		pids = rabbitmqPIDs(s)
	case "redis":
		c, err := StartRedisCluster(context.Background())
		if err != nil {
			return err
		}
		for _, s := range c.Nodes() {
			pids = append(pids, s.proc.PID())
		}
	default:
		s, err := StartPostgres(context.Background())
		if err == nil && kind == "paused" {
			err = s.Pause()
		}
		if err != nil {
			return err
		}
		pids = postgresPIDs(s)
	}
	fmt.Println(workspace.path)
	fmt.Println(strings.Trim(fmt.Sprint(pids), "[]"))
	select {}
}

// postgresPIDs are the ids of all processes of a server.
func postgresPIDs(s *PostgresServer) []int {
	below, _ := proc.Descendants(s.proc.PID())
	return append(below, s.proc.PID())
}

// rabbitmqPIDs are the ids of all processes of a broker.
func rabbitmqPIDs(s *RabbitMQServer) []int {
	below, _ := proc.Descendants(s.proc.PID())
	return append(below, s.proc.PID(), s.epmd.PID())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestServerEndsWithItsProcess: a server does not outlive a test process that had no time to stop it, and the next
// process removes its files.
func TestServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"running", "paused", "rabbitmq", "redis"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // a paused server takes five seconds to give up waiting for its processes
			if kind != "running" {
				nightly.Only(t, "the server is slow to start, or to end")
			}
			victim, dir, pids := startVictim(t, kind)
			must(t, victim.Kill())
			must(t, proc.AwaitGone(pids...))
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

func startVictim(t *testing.T, kind string) (victim *proctest.Process, dir string, pids []int) {
	t.Helper()
	cmd := proc.Self(victimVariable, kind)
	cmd.Env = append(cmd.Env, "TMPDIR="+reachableDir(t)) // of its own, lest another process clears it while the test looks
	victim = proctest.Start(t, cmd)
	dir = victim.Hear("/")
	line := victim.Hear("")
	for _, word := range strings.Fields(line) {
		pid, err := strconv.Atoi(word)
		must(t, err)
		pids = append(pids, pid)
	}
	if len(pids) < 3 {
		t.Fatalf("the victim said %q and %q", dir, line)
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
	t.Parallel()
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
	t.Parallel()
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
