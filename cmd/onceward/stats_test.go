package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

func lookStats(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, "stats"), "completed", "lost owners", "oldest unknown", "dead letters")
	got := objects[counts](t, s, "stats")[0]
	if got.Records["unknown"] != 4 || got.Records["completed"] != 1 || got.Records["failed_retryable"] != 1 ||
		got.DeadLetters != 1 || got.OldestUnknown.IsZero() {
		t.Errorf("counted %+v", got)
	}
	if got.Records["in_progress"] != 1 || got.LostOwners != 1 || got.OldestLostOwner.IsZero() {
		t.Errorf("B1: a lost owner is counted as %+v", got)
	}
	if keeps := s.letter != ""; (got.Outbox != nil) != keeps || keeps && (got.Outbox.Waiting != 1 || got.Outbox.DeadLetters != 1) {
		t.Errorf("counted %+v in the outbox", got.Outbox)
	}
}

// TestWatch: it goes on until it is interrupted, and that is no error.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	command := proc.Self(runAsDemo, "1", "stats", "--watch", "--every", "100ms")
	command.Env = append(command.Env, "ONCEWARD_STORE="+s.url)
	p := proctest.Start(t, command)
	for range 2 {
		for line := ""; line != "completed         1"; {
			line = p.Hear("")
		}
	}
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.Rest()
	if p.ExitCode() != exitOK {
		t.Errorf("exit code %d", p.ExitCode())
	}
}

// lookTop: it shows the store's own numbers, and the decisions that a node counts.
func lookTop(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, "top", "--once", "--every", "100ms"), "A SECOND", "unknown", "oldest unknown", "lost owners")
	var created atomic.Int64
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "onceward_reservations_total{decision=\"created\",operation=\"POST /a\"} %d\n", created.Add(10))
	}))
	t.Cleanup(node.Close)
	got := objects[change](t, s, "top", "--once", "--every", "100ms", "--metrics", node.URL)[0]
	if got.DecisionsPerSecond["created"] <= 0 || got.Records["unknown"] != 4 || got.Seconds <= 0 {
		t.Errorf("shown %+v", got)
	}
}

func lookHealth(t *testing.T, s *service) {
	t.Helper()
	result := s.onceward(t, "health")
	if result.Code != exitFailed {
		t.Errorf("with dead letters: exit code %d: %s", result.Code, result.Stdout)
	}
	says(t, result.Stdout, "3, the oldest for", "dead letters", "NOT OK", "onceward dead list")
	well := []string{"health", "--max-dead", "1", "--max-outbox-dead", "1", "--max-lost-age", "1h"}
	if got := objects[healthReport](t, s, well...)[0]; !got.OK || len(got.Checks) < 4 {
		t.Errorf("with room for them: %+v", got)
	}
	if result := s.onceward(t, append(well, "--max-lost-age", "1us")...); result.Code != exitFailed ||
		!strings.Contains(result.Stdout, "1, the oldest for") {
		t.Errorf("B1: with a lost owner: exit code %d: %s", result.Code, result.Stdout)
	}
	if result := s.onceward(t, append(well, "--max-unknown-age", "1us")...); result.Code != exitFailed {
		t.Errorf("with an old one: exit code %d", result.Code)
	}
}

// TestUnavailable: a store that does not answer is told apart from one that has nothing.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://nobody@127.0.0.1:1/none?connect_timeout=1", "redis://127.0.0.1:1/0", "sqlite:/dev/null/store.db",
	} {
		env := []string{"ONCEWARD_STORE=" + url}
		if result := runCommand(t, env, "keys", "list"); result.Code != exitUnavailable || result.Stderr == "" {
			t.Errorf("%s: exit code %d: %s", url, result.Code, result.Stderr)
		}
		if result := runCommand(t, env, "health"); result.Code != exitFailed {
			t.Errorf("%s: health ends with %d: %s", url, result.Code, result.Stdout)
		}
	}
	if result := runCommand(t, []string{"ONCEWARD_STORE="}, "stats"); result.Code != exitUsage {
		t.Errorf("without a store: exit code %d: %s", result.Code, result.Stderr)
	}
}
