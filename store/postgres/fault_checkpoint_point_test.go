package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// What became of a commit is read off the recovery point, so these are the points that do not say it plainly.

// partial are checkpoints that keep something of the one before, with what the record then holds.
var partial = map[string]struct{ p, kept store.Checkpoint }{
	"point only":     {store.Checkpoint{Point: "shipped"}, store.Checkpoint{Point: "shipped", Data: charged.Data}},
	"data only":      {store.Checkpoint{Data: []byte("ch_2")}, store.Checkpoint{Point: charged.Point, Data: []byte("ch_2")}},
	"empty data":     {store.Checkpoint{Data: []byte{}}, store.Checkpoint{Point: charged.Point}},
	"not replayable": {store.Checkpoint{NotReplayable: true}, charged},
}

// TestCommitOfAPartialPointLost: a point that leaves some of the record as it was is recognised all the same.
func TestCommitOfAPartialPointLost(t *testing.T) {
	t.Parallel()
	for name, c := range partial {
		t.Run(name, func(t *testing.T) {
			f := newStepFault(t, newSite(t, servers.Postgres(t)), pgxHandle, "paid")
			must(t, f.reach(charged))
			f.proxy.CutReply(isCommit)
			if err := f.reach(c.p); err != nil {
				t.Errorf("the commit had landed, and the step got %v", err)
			}
			f.wantSprung(t, 1)
			f.wantReached(t, 2, c.kept, "the commit had landed")
			f.proxy.CutRequest(isCommit)
			wantNotExecuted(t, f.reach(store.Checkpoint{Point: "another"}), "the commit never arrived")
			f.wantReached(t, 2, c.kept, "the commit never arrived")
		})
	}
}

// TestCommitOfTheSamePointLost: a step that leaves the record as it was cannot be told by it. Nobody is told that it was
// committed, or that it was not, who cannot know.
func TestCommitOfTheSamePointLost(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]store.Checkpoint{"the same": charged, "nothing": {}} {
		for fate, rows := range map[string]int{"reply": 2, "request": 1} {
			t.Run(name+"/"+fate, func(t *testing.T) {
				f := newStepFault(t, newSite(t, servers.Postgres(t)), pgxHandle, "paid")
				must(t, f.reach(charged))
				if fate == "reply" {
					f.proxy.CutReply(isCommit)
				} else {
					f.proxy.CutRequest(isCommit)
				}
				wantUnknown(t, f.reach(p), "the record says the same either way")
				f.wantSprung(t, 1)
				f.wantReached(t, rows, charged, "E3")
				f.wantRuns(t, 2, "it is not run again")
			})
		}
	}
}

// TestCommitOfTheSamePointRefused: what the server itself refuses was not committed, whatever the record says.
func TestCommitOfTheSamePointRefused(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]struct {
		code string
		want func(testing.TB, error, string)
	}{"check": {"23514", wantWorkRefused}, "serialisation": {"40001", wantNotExecuted}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			f := newStepFault(t, s, pgxHandle, "paid")
			must(t, f.reach(charged))
			s.failAtCommit(t, refusal.code, always)
			refusal.want(t, f.reach(charged), "the commit was refused")
			f.wantReached(t, 1, charged, "the commit was refused")
		})
	}
}

// TestCommittedStepIsTakenOver has the reply to COMMIT come so late, or never, that another attempt owns the record by then.
// The step is there, so its owner is not told that nothing was changed.
func TestCommittedStepIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		name := map[bool]string{false: "and goes on", true: "and has the same point"}[again]
		t.Run(name, func(t *testing.T) {
			s := newSite(t, servers.Postgres(t))
			other := s.store(t, pgxHandle, s.url)
			f := newStepFault(t, s, pgxHandle, "warm")
			must(t, f.reach(charged)) // the connection is known to be good, and has the statements
			f.claim = takeOver(t, f.store, "paid", 200*time.Millisecond)
			t.Cleanup(f.proxy.HoldReply(isCommit))
			done := f.start(charged)
			awaitCaught(t, f.proxy, 1)
			next := takeOver(t, other, "paid", time.Minute)
			if !again {
				must(t, other.Checkpoint(t.Context(), next, store.Checkpoint{Point: "shipped"}))
			}
			f.proxy.DropAll()
			err := await(t, "the end of the step", done)
			wantUnknown(t, err, "it was committed, and is another's now")
			if !errors.Is(err, store.ErrFenced) {
				t.Errorf("S6: %v does not say that the attempt is no longer current", err)
			}
			f.wantRows(t, "paid", 1, "E3")
		})
	}
}
