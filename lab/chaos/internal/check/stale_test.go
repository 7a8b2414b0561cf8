package check

import (
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// TestStaleAnswers: an answer that was removed is not seen again, or within the bound where a front was not told or has
// forgotten it.
func TestStaleAnswers(t *testing.T) {
	t.Parallel()
	const bound = int64(history.FrontAge)
	bust := history.Write{Scope: "s", Key: "k", Call: history.CallBust, Began: 100, Ended: 110, Accepted: true}
	stale := bust
	stale.Stale = true
	failed := bust
	failed.Accepted = false
	late := []history.FrontLoss{{Began: 112, Ended: 113}}
	for name, c := range map[string]struct {
		bust   history.Write
		losses []history.FrontLoss
		sent   int64
		body   string
		broken bool
	}{
		"old":                                 {bust, nil, 111, "old", true},
		"new":                                 {bust, nil, 111, "new", false},
		"on its way":                          {bust, nil, 109, "old", false},
		"not removed":                         {failed, nil, 111, "old", false},
		"the front was not told":              {stale, nil, 110 + bound, "old", false},
		"the front was not told, too late":    {stale, nil, 111 + bound, "old", true},
		"the front has forgotten it":          {bust, late, 114, "old", false},
		"the front has forgotten it too late": {bust, late, 111 + bound, "old", true},
		"the front had forgotten before":      {bust, []history.FrontLoss{{Began: 98, Ended: 99}}, 111, "old", true},
	} {
		run := &history.Run{FrontLosses: c.losses, Writes: []history.Write{c.bust}}
		for _, a := range []history.Attempt{{Sent: 1, Returned: 2, Body: "old"}, {Sent: c.sent, Returned: c.sent + 5, Body: c.body}} {
			a.Scope, a.Key, a.Kind, a.Status = "s", "k", "spark", 201
			run.Attempts = append(run.Attempts, a)
		}
		f := new(findings)
		for _, o := range newIndex(run).operations {
			checkStale(o, run.FrontLosses, f)
		}
		if broken := len(f.violations) == 1 && f.violations[0].Invariant == "I11"; broken != c.broken {
			t.Errorf("%s: %v, want a violation: %t", name, f.violations, c.broken)
		}
	}
}
