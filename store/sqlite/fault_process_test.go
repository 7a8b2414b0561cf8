package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// startProcess runs the test binary in the part of a helper, on a file.
func startProcess(t testing.TB, name, path string) *proctest.Process {
	t.Helper()
	p := proctest.Start(t, proc.Self(helperVariable, name, path))
	p.Hear("ready")
	return p
}

const contendedKeys = 150

// contend is another process that wants to execute every key, in both modes. It names those that it executed.
func contend(path string) error {
	s, err := sqlite.Open(context.Background(), path, patient)
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
	contenders := []*proctest.Process{startProcess(t, "contender", path), startProcess(t, "contender", path)}
	for _, p := range contenders {
		p.Tell("go")
	}
	executed := map[string]int{}
	shares := []int{0, 0}
	for i, p := range contenders {
		for _, key := range p.Rest() {
			executed[key]++
			shares[i]++
		}
		if p.ExitCode() != 0 {
			t.Errorf("a contender failed: %s", p.Stderr())
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
