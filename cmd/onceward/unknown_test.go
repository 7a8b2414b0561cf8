package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/cmd/onceward/internal/view"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

func lookUnknownList(t *testing.T, s *service) {
	t.Helper()
	text := s.must(t, "unknown", "list")
	says(t, text, s.unknown.Hash(), s.dead.Hash())
	for line := range strings.Lines(text) { // what became of asking does not take the place of why it is unknown
		if strings.HasPrefix(line, s.dead.Hash()) {
			says(t, line, "the bank hung up", "the bank is down")
		}
	}
	if got := objects[view.Record](t, s, "unknown", "list", "--scope", "bob"); len(got) != 1 || !got[0].DeadLetter {
		t.Errorf("of bob are unknown %+v", got)
	}
	says(t, s.must(t, "unknown", "list"), s.lost.Hash(), "in_progress (owner lost)") // B1
	if got := objects[view.Record](t, s, "unknown", "list", "--lost"); len(got) != 1 || got[0].Hash != s.lost.Hash() ||
		!got[0].LostOwner {
		t.Errorf("B1: the lost owners are %+v", got)
	}
	says(t, s.must(t, "unknown", "list", "--lost", "--scope", "bob"), "None.")
	lookUnknownPages(t, s)
}

// lookUnknownPages: pages follow each other without a gap, from what has lost its owner to what is unknown.
func lookUnknownPages(t *testing.T, s *service) {
	t.Helper()
	seen, after := make(map[string]bool), ""
	for page := range 5 {
		found := objects[view.Record](t, s, "unknown", "list", "--limit", "1", "--after", after)
		if len(found) != 1 || seen[found[0].Hash] {
			t.Fatalf("page %d holds %+v", page, found)
		}
		seen[found[0].Hash], after = true, found[0].Cursor
	}
	if found := objects[view.Record](t, s, "unknown", "list", "--limit", "1", "--after", after); len(found) != 0 {
		t.Errorf("behind the last page is %+v", found)
	}
}

// file writes content to a file.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func tryResolveCompleted(t *testing.T, s *service) {
	t.Helper()
	body := file(t, `{"id":"tr_1"}`)
	args := []string{
		"unknown", "resolve", s.unknown.Hash(), "--completed", "--status", "201", "--body-file", body,
		"--header", "Content-Type: application/json", "--header", "X-Note: a, b", "--provider-id", "tr_1",
	}
	says(t, s.must(t, append(args, "--dry-run")...), "every retry gets 201 with a body of 13 bytes", "Dry run")
	if s.record(t, s.unknown).State != store.StateUnknown {
		t.Fatal("a dry run has settled it")
	}
	says(t, s.must(t, acting(args...)...), "Done")
	rec := s.record(t, s.unknown)
	if rec.State != store.StateCompleted || rec.Response.Status != 201 || string(rec.Response.Body) != `{"id":"tr_1"}` ||
		len(rec.Response.Header) != 2 || rec.Response.Header[1].Value != "a, b" || rec.ProviderID != "tr_1" {
		t.Errorf("the record is %+v", rec)
	}
	wantAudit(t, s, s.unknown, "resolve completed", by.Why)
	s.wantCode(t, exitRefused, "not unknown", acting(args...)...)
}

func tryResolveNotExecuted(t *testing.T, s *service) {
	t.Helper()
	s.giveUp(t, s.dead)
	says(t, s.must(t, acting("dead", "resolve", s.dead.Hash(), "--not-executed")...), "Done")
	if rec := s.record(t, s.dead); rec.State != store.StateRetryable {
		t.Errorf("the record is %s", rec.State)
	}
	wantAudit(t, s, s.dead, "resolve not executed", by.Why)
}

// tryResolveStep: the operation goes on behind the step that is settled, and an outcome about another one is refused.
func tryResolveStep(t *testing.T, s *service) {
	t.Helper()
	step := []string{"unknown", "resolve", s.phased.Hash(), "--step"}
	data := file(t, `{"guest":"secret guest","charge":"ch_1"}`)
	says(t, s.must(t, acting(append(step, "charge", "--done", "--data-file", data)...)...), "behind the step", "Done")
	says(t, s.must(t, "keys", "show", s.phased.Hash()), "confirm", "current", `resolve step "charge" as done`)
	if rec := s.record(t, s.phased); rec.State != store.StateInProgress {
		t.Errorf("the record is %s", rec.State)
	}
	await.That(t, "the operation is lost", func() bool { // on DynamoDB nodes allow for clocks that differ
		return strings.Contains(s.must(t, "unknown", "list", "--lost"), s.phased.Hash())
	})
	await.That(t, "the operation is stopped", func() bool { // a process that has seen less of the clock allows for more
		result := s.onceward(t, acting("unknown", "stop", s.phased.Hash())...)
		return result.Code == exitOK && strings.Contains(result.Stdout, "Done")
	})
	if rec := s.record(t, s.phased); rec.State != store.StateUnknown {
		t.Errorf("stopped, the record is %s", rec.State)
	}
}

func TestResolveRefused(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *service) {
		step := []string{"unknown", "resolve", s.phased.Hash(), "--step"}
		s.wantCode(t, exitRefused, "the current step is 'charge'", acting(append(step, "hold", "--done")...)...)
		lacking := file(t, `{"charge":"ch_1"}`)
		s.wantCode(t, exitUsage, "guest", acting(append(step, "charge", "--done", "--data-file", lacking)...)...)
		s.wantCode(t, exitRefused, "no dead letter", acting("dead", "resolve", s.unknown.Hash(), "--not-executed")...)
		s.wantCode(t, exitUsage, "--all", acting("dead", "retry")...)
		s.wantCode(t, exitRefused, "not unknown", acting("unknown", "retry", s.paid.Hash())...)
		s.wantCode(t, exitUsage, "phased", acting("unknown", "resolve", s.unknown.Hash(), "--step", "x", "--done")...)
		s.wantCode(t, exitRefused, "moved on", acting("unknown", "retry", s.unknown.Hash(), "--attempt", "1")...)
		if rec := s.record(t, s.unknown); rec.State != store.StateUnknown || len(s.audited(t, s.unknown)) != 0 {
			t.Errorf("what was refused has changed something: %+v", rec)
		}
	})
}

func tryRetry(t *testing.T, s *service) {
	t.Helper()
	says(t, s.must(t, acting("unknown", "retry", s.unknown.Hash())...), "Done")
	says(t, s.must(t, acting("dead", "retry", "--all")...), s.dead.Hash(), "Done")
	if rec := s.record(t, s.dead); rec.DeadLetter || rec.State != store.StateUnknown {
		t.Errorf("the record is %+v", rec)
	}
	says(t, s.must(t, "dead", "list"), "None.")
}

// TestResolveUsage: what does not fit together is refused before the store is asked.
func TestResolveUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		says string
	}{
		{nil, "say what you have learned"},
		{[]string{"--completed"}, "--status"},
		{[]string{"--completed", "--not-executed"}, "--not-executed"},
		{[]string{"--done"}, "--step NAME"},
		{[]string{"--completed", "--status", "200", "--step", "x"}, "--done"},
		{[]string{"--not-executed", "--status", "200"}, "--completed"},
		{[]string{"--not-executed", "--text"}, "--completed"},
		{[]string{"--not-executed", "--data-file", "x"}, "--data-file"},
		{[]string{"--not-executed", "--provider-id", "x"}, "--provider-id"},
	} {
		result := runCommand(t, nil, append([]string{"unknown", "resolve", "x"}, test.args...)...)
		if result.Code != exitUsage {
			t.Errorf("%q: exit code %d", test.args, result.Code)
		}
		says(t, result.Stderr, test.says)
	}
}

// TestAnswerOfATool: the answer of a tool of a language model is a JSON object, because the tool may have an output
// schema, unless it is an error or meant as text.
func TestAnswerOfATool(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	unknown := onceward.OutcomeUnknown(errors.New("the bank hung up"))
	for i, test := range []struct {
		status, body string
		flags        []string
		refused      bool
	}{
		{"200", `it was sent`, nil, true},
		{"200", ``, nil, true},
		{"201", `[7]`, nil, true},
		{"200", `null`, nil, true},
		{"399", `{"number":`, nil, true},
		{"200", `{"number": 7}`, nil, false},
		{"200", `it was sent`, []string{"--text"}, false},
		{"200", ``, []string{"--text"}, false},
		{"402", `declined`, nil, false},
	} {
		id := s.doOperation(t, "tools/call pay", "alice", fmt.Sprintf("tool-%d", i), unknown)
		args := append(acting("unknown", "resolve", id.Hash(), "--completed", "--status", test.status,
			"--body-file", file(t, test.body)), test.flags...)
		if !test.refused {
			s.must(t, args...)
			continue
		}
		s.wantCode(t, exitUsage, "--text", args...)
		if state := s.record(t, id).State; state != store.StateUnknown {
			t.Errorf("%s %s was refused, and left the record %s", test.status, test.body, state)
		}
	}
}

// TestImpossibleAnswer: an answer that cannot be sent as it is given is not stored.
func TestImpossibleAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t, stores["SQLite"](t))
	for want, args := range map[string][]string{
		"is not NAME:VALUE":         {"--status", "201", "--header", "Content Type: text/plain"},
		"is not NAME:VALUE'":        {"--status", "201", "--header", "X: a\x01b"},
		"of status 204 has no body": {"--status", "204", "--body-file", file(t, "a body")},
	} {
		s.wantCode(t, exitUsage, strings.TrimSuffix(want, "'"),
			acting(append([]string{"unknown", "resolve", s.unknown.Hash(), "--completed"}, args...)...)...)
	}
	s.must(t, acting("unknown", "resolve", s.unknown.Hash(), "--completed", "--status", "201", "--header", "X-A: b\tc")...)
}
