package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// process is another process that plays a part.
type process struct {
	*osexec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startProcess runs the test binary in the part of a helper, on a file.
func startProcess(t testing.TB, name, path string) *process {
	t.Helper()
	cmd := osexec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), helperVariable+"="+name)
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &process{Cmd: cmd, in: in, out: bufio.NewScanner(out)}
	if !p.out.Scan() || p.out.Text() != "ready" {
		t.Fatalf("the %s said %q, want ready", name, p.out.Text())
	}
	return p
}

func (p *process) say(t testing.TB, line string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

const contendedKeys = 150

// contend is another process that wants to execute every key, in both modes. It names those that it executed.
func contend(path string) error {
	s, err := sqlite.Open(context.Background(), path)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	bufio.NewScanner(os.Stdin).Scan()
	for i := range contendedKeys {
		key := fmt.Sprint("transactional-", i)
		v, err := s.Transact(context.Background(), reservation(key), inserting(key))
		if err != nil {
			return err
		}
		if v.Decision == store.DecisionExecute {
			fmt.Println(key)
		}
		key = fmt.Sprint("reserved-", i)
		v, err = s.Reserve(context.Background(), reservation(key))
		if err != nil {
			return err
		}
		if v.Decision == store.DecisionExecute {
			fmt.Println(key)
			if _, err := s.Complete(context.Background(), store.Claim{ID: idOf(key), Attempt: v.Record.Attempt},
				answerOf(key)); err != nil {
				return err
			}
		}
	}
	return s.Close()
}

// TestContendingProcesses lets two processes fight for the same keys: each is executed once.
func TestContendingProcesses(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := openBusiness(t, path)
	contenders := []*process{startProcess(t, "contender", path), startProcess(t, "contender", path)}
	for _, p := range contenders {
		p.say(t, "go")
	}
	executed := map[string]int{}
	shares := []int{0, 0}
	for i, p := range contenders {
		for p.out.Scan() {
			executed[p.out.Text()]++
			shares[i]++
		}
		if err := p.Wait(); err != nil {
			t.Errorf("a contender failed: %v", err)
		}
	}
	for i := range contendedKeys {
		for _, mode := range []string{"transactional-", "reserved-"} {
			key := fmt.Sprint(mode, i)
			if executed[key] != 1 {
				t.Errorf("I1: %s was executed %d times", key, executed[key])
			}
			wantState(t, s, key, store.StateCompleted, "I5")
			if strings.HasPrefix(key, "transactional") {
				wantRows(t, s, key, 1, "I1")
			}
		}
	}
	t.Logf("the processes executed %v of %d", shares, 2*contendedKeys)
}
