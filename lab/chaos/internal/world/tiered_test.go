package world

import (
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// TestFrontUsed: a front is of use when it has answered and something was removed. That it was asked, and that it
// failed, is not enough.
func TestFrontUsed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server-1.1"+journalSuffix)
	journal, err := history.OpenJournal(path, "server-1.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = journal.Close() }) // its errors are looked at below
	for i, step := range []struct {
		write history.Write
		used  bool
	}{
		{history.Write{Call: history.CallReserve, Accepted: true}, false},
		{history.Write{Call: history.CallFront}, false},
		{history.Write{Call: history.CallFrontFailed, Err: "get: too late"}, false},
		{history.Write{Call: history.CallBust, Accepted: true}, false},
		{history.Write{Call: history.CallFront, Accepted: true}, true},
		{history.Write{Call: history.CallFront}, true},
	} {
		step.write.Seq = journal.Begin(step.write)
		journal.End(step.write)
		if err := journal.Err(); err != nil {
			t.Fatal(err)
		}
		if used, err := frontUsed([]string{path}); used != step.used || err != nil {
			t.Errorf("after write %d: %t, %v, want %t", i+1, used, err, step.used)
		}
	}
}
