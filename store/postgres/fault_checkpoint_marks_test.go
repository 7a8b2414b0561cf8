package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestCommitOfAMarkedStepLost has the owner store marks beside a step whose commit is lost on the way, or its reply. What
// became of the step is told by its point all the same.
func TestCommitOfAMarkedStepLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	marks := store.Checkpoint{NotReplayable: true, ProviderID: "ch_9"}
	for fate, rows := range map[string]int{"reply": 1, "request": 0} {
		f := newStepFault(t, s, pgxHandle, fate)
		other := s.store(t, pgxHandle, s.url)
		f.during = func(context.Context, int64) error { return other.Checkpoint(t.Context(), f.claim, marks) }
		want := charged
		if fate == "reply" {
			f.proxy.CutReply(isCommit)
			must(t, f.reach(charged))
		} else {
			f.proxy.CutRequest(isCommit)
			want = store.Checkpoint{}
			if err := f.reach(charged); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("E3: the commit never arrived, and the step got %v", err)
			}
		}
		f.wantSprung(t, 1)
		f.wantReached(t, rows, want, fate)
		f.wantRuns(t, 1, "E3: "+fate)
		rec, err := other.Get(t.Context(), f.claim.ID)
		if must(t, err); !rec.NotReplayable || rec.ProviderID != marks.ProviderID {
			t.Errorf("S2: after a lost %s the marks are %t and %q", fate, rec.NotReplayable, rec.ProviderID)
		}
	}
}
