package check

import (
	"reflect"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

func TestSummaryCounts(t *testing.T) {
	t.Parallel()
	s := &story{Run: clean(), clock: 1_000_000}
	s.ask(history.Attempt{Kind: "transfer", Key: "open", Reference: "T5", Status: 502})
	s.record("open", "unknown", 1, "")
	s.ask(problem("payment", "undone", "P4", 500, "outcome-unknown"))
	s.write(history.Write{
		Call: history.CallExtend, Key: "moved", Attempt: 1,
		Err: "onceward: extend by attempt 1 refused: …",
	})
	s.record("not asked for", "completed", 1, "")
	got := Summary(s.Run)
	// Of the clean history paid and booked have a lost attempt that the next ones overlap, and refunded was unknown.
	// Idle was never answered, nor what the other scope asked for.
	want := Counts{
		Operations: 16, Attempts: 28, Replays: 1, Overlapping: 2, Abandoned: 4, Unknown: 5, Settled: 4,
		Fenced: 2, AfterExpiry: 1, Acts: 2, Forgeries: 2, Parcels: 4,
		Answers: map[string]int{
			"success": 13, "refusal": 2, "no answer": 2, "in-progress": 1, "outcome-unknown": 4, "mismatch": 2,
			"not-executed": 1, "store-unavailable": 2, "other": 1,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOverlappingAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts attempts
		want     bool
	}{
		"one after the other":     {attempts{seen(5, 6, "p", "A"), seen(1, 5, "p", "A")}, false},
		"one within the other":    {attempts{seen(1, 9, "p", "A"), seen(3, 4, "p", "A")}, true},
		"behind one without end":  {attempts{seen(1, 0, "p", "lost"), seen(30, 40, "p", "A")}, true},
		"in front of one without": {attempts{seen(1, 2, "p", "A"), seen(30, 0, "p", "lost")}, false},
		"the first over the last": {attempts{seen(1, 9, "p", "A"), seen(2, 3, "p", "A"), seen(5, 6, "p", "A")}, true},
	} {
		if got := overlapping(c.attempts); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
