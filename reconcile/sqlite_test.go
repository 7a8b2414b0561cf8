package reconcile_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

func openFile(t *testing.T) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// runUntil runs the poller until a record is as wanted. Its pauses are those of a real clock.
func runUntil(t *testing.T, store store.Store, poller *reconcile.Poller, key string, is func(*store.Record) bool) {
	t.Helper()
	for {
		if rec := record(t, store, key); is(&rec) {
			return
		}
		_, err := poller.RunOnce(t.Context())
		must(t, err)
	}
}

// TestOnAFile takes records through each way of being settled, on a store with a file.
func TestOnAFile(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	bank := &oracle{answer: func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
		switch rec.Key {
		case "paid":
			return reconcile.Completed(paid, "ch_1"), nil
		case "unheard of":
			return reconcile.NotFound(), nil
		case "panics":
			panic("no such field")
		default:
			return reconcile.StillUnknown("the bank is still at it"), nil
		}
	}}
	rule := hearing(bank)
	rule.Deduplicates = true
	poller := newPoller(t, s, rule, reconcile.Config{MinBackoff: time.Microsecond, MaxBackoff: time.Microsecond, MaxAttempts: 3})
	keep(t, s, about("told", "e2", 2, "paid"), about("told", "e1", 1, "cancelled"))
	for _, key := range []string{"paid", "unheard of", "panics", "told", "silent"} {
		lose(t, s, key)
	}
	for key, want := range map[string]store.State{
		"paid": store.StateCompleted, "told": store.StateCompleted, "unheard of": store.StateRetryable,
	} {
		runUntil(t, s, poller, key, func(rec *store.Record) bool { return rec.State == want })
	}
	for key, want := range map[string]string{"panics": "panic: no such field", "silent": "still at it"} {
		runUntil(t, s, poller, key, func(rec *store.Record) bool { return rec.DeadLetter })
		if rec := record(t, s, key); rec.ReconcileCount != 3 || !strings.Contains(rec.ReconcileError, want) {
			t.Errorf("%s was given up after %d tries, because %q", key, rec.ReconcileCount, rec.ReconcileError)
		}
	}
	bank.wantAsked(t, 1+1+3+3) // not about what was told
}

// TestOperatorOnAFile: dead letters are listed, found and settled, and all of it is in the history.
func TestOperatorOnAFile(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	operator := newOperator(t, s)
	claim := lose(t, s, "k")
	giveUp(t, s, claim)
	letters, err := operator.DeadLetters(t.Context(), store.ID{}, 10)
	if err != nil || len(letters) != 1 || letters[0].ReconcileError != "gave up" {
		t.Fatalf("dead letters are %+v, %v", letters, err)
	}
	found, err := operator.Find(t.Context(), reconcile.Query{Subject: about("k", "", 0, "").Subject, Steps: []string{"transfer"}})
	if err != nil || len(found) != 1 || found[0].ID != claim.ID {
		t.Fatalf("by its downstream key was found %+v, %v", found, err)
	}
	must(t, operator.ResolveCompleted(t.Context(), zoe, claim, store.Completion{Response: paid, ProviderID: "ch_1"}))
	if found, err = operator.Find(t.Context(), reconcile.Query{Subject: "ch_1"}); err != nil || len(found) != 1 {
		t.Errorf("by its provider's id was found %+v, %v", found, err)
	}
	must(t, operator.Bust(t.Context(), zoe, claim.ID, false))
	h, err := operator.History(t.Context(), claim.ID)
	if err != nil || h.Record.State != store.StateNone || len(h.Audit) != 4 || h.Audit[1].Outcome != "done" {
		t.Errorf("the history is %+v, %v", h, err)
	}
}
