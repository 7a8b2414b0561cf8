package history_test

import (
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

func journal(t *testing.T, path, node string) *history.Journal {
	t.Helper()
	j, err := history.OpenJournal(path, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A test that closed it has looked at the error itself.
		_ = j.Close()
	})
	return j
}

func TestClockMovesForward(t *testing.T) {
	t.Parallel()
	first := history.Now()
	for range 1000 {
		if now := history.Now(); now < first {
			t.Fatalf("%d after %d", now, first)
		}
	}
}

func TestJournalJoinsTheTwoLinesOfACall(t *testing.T) {
	t.Parallel()
	file := path(t)
	j := journal(t, file, "node-1")
	before := history.Now()
	reserve := j.Begin(history.Write{Call: history.CallReserve, Scope: "s", Key: "k", Nonce: "once"})
	died := j.Begin(history.Write{Call: history.CallExtend, Scope: "s", Key: "other", Attempt: 3})
	j.End(history.Write{Seq: reserve, Attempt: 9, Granted: true, Accepted: true})
	after := history.Now()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	writes := read(t, file).Writes
	if len(writes) != 2 {
		t.Fatalf("%d writes, want 2: %+v", len(writes), writes)
	}
	got := writes[0]
	if got.Began < before || got.Ended < got.Began || got.Ended > after {
		t.Errorf("began %d, ended %d, want both in order within [%d, %d]", got.Began, got.Ended, before, after)
	}
	got.Began, got.Ended = 0, 0
	want := history.Write{
		Node: "node-1", Seq: reserve, Call: history.CallReserve, Scope: "s", Key: "k", Attempt: 9, Nonce: "once",
		Granted: true, Accepted: true,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if lost := writes[1]; lost.Seq != died || lost.Ended != 0 || lost.Accepted || lost.Attempt != 3 || lost.Began < before {
		t.Errorf("the call that did not come back: %+v", lost)
	}
}

func TestJournalGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	file := path(t)
	paused := journal(t, file, "node-1")
	first := paused.Begin(history.Write{Call: history.CallReserve, Key: "first"})
	restarted := journal(t, file, "node-1")
	second := restarted.Begin(history.Write{Call: history.CallReserve, Key: "second"})
	paused.End(history.Write{Seq: first, Attempt: 1})
	restarted.End(history.Write{Seq: second, Attempt: 2})

	writes := read(t, file).Writes
	if len(writes) != 2 || writes[0].Key != "first" || writes[0].Attempt != 1 || writes[1].Key != "second" || writes[1].Attempt != 2 {
		t.Errorf("the calls of the two processes got mixed up: %+v", writes)
	}
}

func TestJournalKeepsItsFirstError(t *testing.T) {
	t.Parallel()
	j := journal(t, path(t), "node-1")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Err(); err != nil {
		t.Errorf("error %v before anything failed", err)
	}
	j.End(history.Write{Seq: j.Begin(history.Write{Call: history.CallReserve})})
	if j.Err() == nil {
		t.Error("a line that could not be written left no error")
	}
}

func TestJournalSaysWhenAFindingWasReported(t *testing.T) {
	t.Parallel()
	file := path(t)
	j := journal(t, file, "node-1")
	before := history.Now()
	j.Find(history.Finding{Run: "refunds 1/2", Key: "re_1", Kind: "missing here"})
	found := read(t, file).Findings
	if len(found) != 1 || found[0].At < before || found[0].At > history.Now() {
		t.Errorf("got %+v, want one that was reported after %d", found, before)
	}
}
