package node

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/storeurl"
)

// TestJournalKeepsAnswersOfTransactions: a transaction that was committed is journaled with the answer that it has
// made, so that two of one token can be told apart.
func TestJournalKeepsAnswersOfTransactions(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	directory := t.TempDir()
	db, err := storeurl.Open(t.Context(), filepath.Join(directory, "store.db"))
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	file := filepath.Join(directory, "journal")
	journal, err := history.OpenJournal(file, "n")
	must(err)
	s := &journaled{Store: wrap.New(db.Store, nil), journal: journal}
	response := store.Response{Status: 201, Body: []byte("made")}
	for i, action := range []store.TxAction{store.TxCommit, store.TxCommitAnswer, store.TxRollback} {
		_, err := s.Transact(t.Context(), &store.Reservation{
			ID: store.ID{Scope: "s", Key: string(rune('a' + i))}, Operation: "POST /x", Nonce: store.Nonce{1},
			Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}},
			Lease:        time.Minute, Retention: time.Hour,
		}, func(context.Context, store.Verdict) store.Settlement {
			return store.Settlement{Action: action, Completion: store.Completion{Response: response}}
		})
		must(err)
	}
	must(journal.Close())
	run, err := history.Read(file)
	must(err)
	want := Digest(&response)
	for i, digest := range []string{want, want, ""} {
		if w := run.Writes[i]; w.Digest != digest || w.Ended == 0 || w.Granted != (digest != "") {
			t.Errorf("transaction %d is journaled as %+v, want the digest %q", i, w, digest)
		}
	}
}
