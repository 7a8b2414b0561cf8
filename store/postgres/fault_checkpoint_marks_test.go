package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// TestCommitOfAMarkedStepLost has the owner store marks beside a step whose commit is lost on the way, or its reply.
// What became of the step is told by its point all the same.
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

// TestMarkedStepLeavesNoOldData: the data that a step has replaced is gone from the row, also if marks were stored
// beside it. It may have been there in the clear, or under a key that is not to be needed.
func TestMarkedStepLeavesNoOldData(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	f := newStepFault(t, s, pgxHandle, "paid")
	must(t, f.store.Checkpoint(t.Context(), f.claim, store.Checkpoint{Point: "begun", Data: []byte("in the clear")}))
	f.during = func(context.Context, int64) error {
		return f.store.Checkpoint(t.Context(), f.claim, store.Checkpoint{ProviderID: "ch_9"})
	}
	must(t, f.reach(charged))
	f.wantReached(t, 1, charged, "E3")
	if number(t, s.admin, `SELECT count(*) FROM onceward_record WHERE position('in the clear'::bytea IN data) > 0`) != 0 {
		t.Error("L3: the row still has what the step has replaced")
	}
	if rec, err := f.store.Get(t.Context(), f.claim.ID); err != nil || rec.ProviderID != "ch_9" {
		t.Errorf("S2: the provider's id is %q, %v", rec.ProviderID, err)
	}
}

// TestMarkDoesNotTell: that a mark is there does not say that the step was committed which set it too, because the same
// attempt can have stored it beside the step.
func TestMarkDoesNotTell(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	for name, mark := range map[string]store.Checkpoint{"id": {ProviderID: "ch_9"}, "flag": {NotReplayable: true}} {
		f := newStepFault(t, s, pgxHandle, name)
		other := s.store(t, pgxHandle, s.url)
		f.during = func(context.Context, int64) error { return other.Checkpoint(t.Context(), f.claim, mark) }
		f.proxy.CutRequest(isCommit)
		wantNotExecuted(t, f.reach(mark), "E3: the COMMIT never arrived, whatever mark is there")
		f.wantSprung(t, 1)
		f.wantRows(t, f.claim.Key, 0, "E3: the COMMIT never arrived")
	}
}

// TestLostReplyLeavesNothing: what a step has replaced is not in the row any more, also if its reply was lost.
func TestLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, servers.Postgres(t))
	f := newStepFault(t, s, pgxHandle, "paid")
	other := s.store(t, pgxHandle, s.url)
	must(t, other.Checkpoint(t.Context(), f.claim, store.Checkpoint{Point: "begun", Data: []byte("in the clear")}))
	f.during = func(context.Context, int64) error {
		return other.Checkpoint(t.Context(), f.claim, store.Checkpoint{ProviderID: "ch_9"})
	}
	f.proxy.CutReply(isCommit)
	must(t, f.reach(charged))
	f.wantSprung(t, 1)
	if n := number(t, s.admin,
		`SELECT count(*) FROM onceward_record WHERE position('in the clear'::bytea IN data) > 0`); n != 0 {
		t.Error("L3: the row still has what the step has replaced")
	}
}
