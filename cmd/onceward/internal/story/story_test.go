package story

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/phase"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
)

// TestRetryGets: what a person is told that a retry gets is what the state machine says.
func TestRetryGets(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 17, 8, 0, 0, 0, time.UTC)
	later, before := now.Add(time.Minute), now.Add(-time.Minute)
	for _, test := range []struct {
		name string
		rec  store.Record
		want string
	}{
		{"no record", store.Record{}, "it executes"},
		{"expired and kept", store.Record{Version: 1, State: store.StateExpired}, "it executes"},
		{"in flight", store.Record{Version: 1, State: store.StateInProgress, LeaseUntil: later}, "409 with Retry-After"},
		{"lost", store.Record{Version: 1, State: store.StateInProgress, LeaseUntil: before}, "409 outcome-unknown"},
		{"lost, phased", store.Record{
			Version: 1, State: store.StateInProgress, LeaseUntil: before, OnLost: store.LostResume,
		}, "from the last recovery point"},
		{"unknown", store.Record{Version: 1, State: store.StateUnknown}, "409 outcome-unknown"},
		{"released", store.Record{Version: 1, State: store.StateRetryable, ExpiresAt: later}, "if it is the same request"},
		{"completed", store.Record{
			Version: 1, State: store.StateCompleted, ExpiresAt: later, Response: store.Response{Status: 201},
		}, "the stored answer, 201"},
		{"completed, past its expiry", store.Record{
			Version: 1, State: store.StateCompleted, ExpiresAt: before, Response: store.Response{Status: 201},
		}, "it executes"},
		{"not stored", store.Record{
			Version: 1, State: store.StateCompleted, ExpiresAt: later, Response: store.Response{Status: 201, NotStored: true},
		}, "409 response-not-stored"},
	} {
		if got := (&Story{record: test.rec}).retryGets(now); !strings.Contains(got, test.want) {
			t.Errorf("%s: a retry gets %q, want %q", test.name, got, test.want)
		}
	}
	if got := (&Story{unreadable: true}).retryGets(now); !strings.Contains(got, "500 record-unreadable") {
		t.Errorf("unreadable: a retry gets %q", got)
	}
}

// TestNext: commands name the attempt that was seen, and what is not possible is not offered.
func TestNext(t *testing.T) {
	t.Parallel()
	now := time.Now()
	told := func(rec store.Record, progress *phase.Progress) string {
		rec.ID, rec.Attempt, rec.Version = store.ID{Scope: "s", Key: "k"}, 42, 1
		story := &Story{record: rec, progress: progress}
		var lines []string
		for _, c := range story.next(Question{Now: now, Suffix: " --store x"}) {
			lines = append(lines, c.Command)
			if !strings.HasSuffix(c.Command, " --why 'REASON' --store x") {
				t.Errorf("this cannot be pasted: %s", c.Command)
			}
		}
		return strings.Join(lines, "\n")
	}
	unknown := told(store.Record{State: store.StateUnknown}, nil)
	if strings.Count(unknown, "--attempt 42") != 3 || !strings.Contains(unknown, "onceward unknown retry ") {
		t.Errorf("for an unknown one: %s", unknown)
	}
	for operation, status := range map[string]string{
		"POST /payments": "201", "PUT /payments/{id}": "200", "tools/call pay": "200", "/acme.Payments/Create": "200", "refund": "200",
	} {
		if got := told(store.Record{State: store.StateUnknown, Operation: operation}, nil); !strings.Contains(got, " --status "+status+" ") {
			t.Errorf("the answer of %s is not %s: %s", operation, status, got)
		}
	}
	dead := told(store.Record{State: store.StateUnknown, DeadLetter: true}, nil)
	if strings.Contains(dead, "onceward unknown ") || strings.Count(dead, "onceward dead ") != 3 {
		t.Errorf("for a dead letter: %s", dead)
	}
	phased := told(store.Record{State: store.StateUnknown}, &phase.Progress{Step: "it's"})
	if !strings.Contains(phased, `--step 'it'\''s' --done`) || !strings.Contains(phased, `--step 'it'\''s' --not-executed`) {
		t.Errorf("for a phased one: %s", phased)
	}
	if got := told(store.Record{State: store.StateInProgress, LeaseUntil: now.Add(time.Minute)}, nil); got != "" {
		t.Errorf("for one in flight: %s", got)
	}
	lost := told(store.Record{State: store.StateInProgress, OnLost: store.LostResume, LeaseUntil: now}, nil)
	if !strings.Contains(lost, "onceward unknown stop ") {
		t.Errorf("for a lost one: %s", lost)
	}
}

// TestWasUnknown: what a settled record does not tell any more is told by what was done about it, as far as that proves
// it.
func TestWasUnknown(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 17, 8, 0, 0, 0, time.UTC)
	after := func(minutes int) time.Time { return made.Add(time.Duration(minutes) * time.Minute) }
	entry := func(minutes int, attempt int64, action, outcome string) store.AuditEntry {
		return store.AuditEntry{At: after(minutes), Attempt: attempt, Action: action, Outcome: outcome}
	}
	story := &Story{record: store.Record{
		Version: 1, State: store.StateCompleted, Attempt: 9, CreatedAt: made, SettledAt: after(9),
		FirstError: "lease ran out",
	}}
	story.addHistory(&reconcile.History{Audit: []store.AuditEntry{
		entry(-5, 2, "reconcile attempt 1", "not found"), // of an earlier record under the key
		entry(1, 7, "resolve completed", ""), entry(1, 7, "resolve completed", "failed: it is in progress"),
		entry(2, 7, "reveal", ""), entry(2, 7, "reveal", "done"),
		entry(3, 7, "reconcile attempt 1", "not found"), entry(4, 7, "reconcile attempt 2", "not found"),
		entry(5, 8, `resolve step "charge" as done`, ""), entry(6, 8, `resolve step "charge" as done`, "done"),
	}})
	story.addUnknown()
	var got []string
	for _, e := range story.Events {
		if strings.Contains(e.What, "was unknown") {
			got = append(got, e.At.Format("15:04 ")+e.What+": "+e.Detail)
		}
	}
	want := []string{
		"08:03 the outcome of attempt 7 was unknown: the first error was lease ran out",
		"08:05 the outcome of attempt 8 was unknown: ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the story tells %q, want %q", got, want)
	}
	story = &Story{record: store.Record{Version: 1, State: store.StateUnknown, Attempt: 7, CreatedAt: made}}
	story.noteUnknown(7, after(1))
	if story.addUnknown(); len(story.Events) != 0 {
		t.Errorf("the record and the history show the same event twice: %v", story.Events)
	}
}
