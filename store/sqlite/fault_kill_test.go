package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/proc/proctest"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

// crashLease is short, so that what a killed process held becomes unknown soon.
const crashLease = 300 * time.Millisecond

// effects is where reserved operations leave their mark outside of the store.
func effects(path string) string { return path + ".effects" }

// runUntilKilled is a process that executes keys in both modes until it is killed. It first retries the keys that it is
// given, as clients would, and says what it tries and what is acknowledged.
func runUntilKilled(path string) error {
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		return err
	}
	ledger, err := os.OpenFile(effects(path), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	keys := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() && in.Text() != "go" {
			keys <- in.Text()
		}
		for i := 0; ; i++ {
			keys <- fmt.Sprintf("transactional-%d-%d", os.Getpid(), i)
			keys <- fmt.Sprintf("reserved-%d-%d", os.Getpid(), i)
		}
	}()
	failed := make(chan error)
	for range 8 {
		go func() {
			for key := range keys {
				fmt.Println("try", key)
				acknowledged, err := execute(store, ledger, key)
				if err != nil {
					failed <- fmt.Errorf("%s: %w", key, err)
				}
				if acknowledged {
					fmt.Println("done", key)
				}
			}
		}()
	}
	return <-failed
}

// execute runs one operation, and reports whether it may be acknowledged.
func execute(s *sqlite.Store, ledger *os.File, key string) (acknowledged bool, err error) {
	ctx := context.Background()
	r := reservation(key, leaseOf(crashLease))
	if strings.HasPrefix(key, "transactional") {
		r.Lease = time.Minute
		v, err := s.Transact(ctx, r, inserting(key))
		return v.Decision == store.DecisionExecute || v.Decision == store.DecisionReplay, err
	}
	v, err := s.Reserve(ctx, r)
	if err != nil || v.Decision != store.DecisionExecute {
		return v.Decision == store.DecisionReplay, err
	}
	if _, err := fmt.Fprintln(ledger, key); err != nil {
		return false, err
	}
	_, err = s.Complete(ctx, store.Claim{ID: r.ID, Attempt: v.Record.Attempt}, answerOf(key))
	return err == nil, err
}

// TestKilled kills a process at random moments, and looks at what is left: everything that was acknowledged, and
// nothing twice or by half.
func TestKilled(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	if err := openBusiness(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	history := map[string]bool{} // the keys that were tried, and whether they were acknowledged
	var pending []string
	const rounds = 6
	for range rounds {
		p := startProcess(t, "crasher", path)
		for _, key := range pending {
			p.Tell(key)
		}
		p.Tell("go")
		runAndKill(t, p, history)
		pending = checkCrashed(t, path, history)
	}
	store := openStore(t, path)
	ledger, err := os.OpenFile(effects(path), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	unknown := 0
	for _, key := range pending {
		done, err := execute(store, ledger, key)
		switch {
		case err != nil:
			t.Errorf("the retry of %s got %v", key, err)
		case done:
			history[key] = true
		default:
			unknown++
		}
	}
	for _, key := range checkRecords(t, store, path, history) {
		if strings.HasPrefix(key, "transactional") {
			t.Errorf("E1: %s has no outcome after its retry", key)
		}
	}
	t.Logf("%d operations in %d lives, %d unknown", len(history), rounds, unknown)
}

// runAndKill lets the process work for a while after its first acknowledgement.
func runAndKill(t *testing.T, p *proctest.Process, history map[string]bool) {
	t.Helper()
	var once sync.Once
	for line, err := p.Line(2 * time.Minute); err == nil; line, err = p.Line(2 * time.Minute) {
		word, key, whole := strings.Cut(line, " ")
		if !whole {
			continue // cut off by the kill
		}
		if word == "try" {
			history[key] = history[key] || false
			continue
		}
		history[key] = true
		once.Do(func() {
			time.AfterFunc(time.Duration(rand.Int64N(int64(100*time.Millisecond))), func() { _ = p.Kill() })
		})
	}
	if err := p.Wait(2 * time.Minute); p.ExitCode() != -1 {
		t.Fatalf("the process ended by itself: %v: %s", err, p.Stderr())
	}
}

// checkCrashed opens the file as a process that was killed left it.
func checkCrashed(t *testing.T, path string, history map[string]bool) (pending []string) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	pending = checkRecords(t, store, path, history)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return pending
}

// checkRecords compares the records with the rows and the effects, and returns the keys that were tried and have no
// answer.
func checkRecords(t *testing.T, s *sqlite.Store, path string, history map[string]bool) (pending []string) {
	t.Helper()
	states := map[string]store.State{}
	filter := store.Filter{}
	for {
		page, err := s.List(t.Context(), filter)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range page {
			states[rec.Key] = rec.State
			filter.After = rec.ID
		}
		if len(page) < store.MaxPage {
			break
		}
	}
	done := executions(t, s, path)
	for key, n := range done {
		if n != 1 {
			t.Errorf("I1: %s took effect %d times", key, n)
		}
		if states[key] == store.StateNone {
			t.Errorf("I5: %s took effect without a record", key)
		}
	}
	for key, state := range states {
		if strings.HasPrefix(key, "transactional") && (state != store.StateCompleted || done[key] != 1) {
			t.Errorf("E1: %s is %s with %d rows", key, state, done[key])
		}
		if state == store.StateCompleted && done[key] != 1 {
			t.Errorf("I2: %s is completed with %d effects", key, done[key])
		}
		if state != store.StateCompleted {
			wantUnknown(t, s, key)
		}
	}
	for key, acknowledged := range history {
		if states[key] == store.StateCompleted {
			continue
		}
		pending = append(pending, key)
		if acknowledged {
			t.Errorf("I2: %s was acknowledged, and is %s", key, states[key])
		}
	}
	return pending
}

// executions counts the rows of transactional operations and the effects of reserved ones.
func executions(t *testing.T, store *sqlite.Store, path string) map[string]int {
	t.Helper()
	done := map[string]int{}
	rows, err := store.DB().Query(`SELECT value FROM business`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		done[key]++
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(effects(path))
	if err != nil {
		t.Fatal(err)
	}
	for key := range strings.FieldsSeq(string(content)) {
		done[key]++
	}
	return done
}

// wantUnknown waits for the lease of a reservation whose owner was killed. It is never executed again.
func wantUnknown(t *testing.T, s *sqlite.Store, key string) {
	t.Helper()
	rec, err := s.Get(t.Context(), idOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if rec.State == store.StateInProgress {
		time.Sleep(time.Until(rec.LeaseUntil)) // the lease runs out by the clock alone
	}
	if v, err := s.Reserve(t.Context(), reservation(key)); err != nil || v.Decision != store.DecisionUnknown {
		t.Errorf("section 4: %s was in progress when its owner was killed, and got (%s, %v)", key, v.Decision, err)
	}
}
