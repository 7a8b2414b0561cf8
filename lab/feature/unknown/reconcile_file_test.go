package unknown_test

import (
	"context"
	"fmt"
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
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// runUntil runs the poller until a record is as wanted. Its pauses are those of a real clock.
func runUntil(t *testing.T, s store.Store, poller *reconcile.Poller, key string, is func(*store.Record) bool) {
	t.Helper()
	for {
		if rec := record(t, s, key); is(&rec) {
			return
		}
		_, err := poller.RunOnce(t.Context())
		must(t, err)
	}
}

// told is the rule of a bank that can be asked, and tells by itself too: its last external event counts.
func told(asked reconcile.Resolver) reconcile.Rule {
	return reconcile.Rule{
		Resolver: asked, Deduplicates: true, Source: "bank", Steps: []string{"reserve", "transfer"},
		Interpret: func(_ context.Context, _ *store.Record, events []store.ExternalEvent) (reconcile.Answer, error) {
			if last := string(events[len(events)-1].Body); last != "paid" {
				return reconcile.NotExecuted(last), nil
			}
			return reconcile.Completed(paid, "ch_1"), nil
		},
	}
}

// TestOnAFile takes records through each way of being settled, on a store with a file.
func TestOnAFile(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	guard := newGuard(t, s)
	asked := &bank{answer: func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
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
	poller := newPoller(t, guard, s, told(asked), reconcile.Config{
		MinBackoff: time.Microsecond, MaxBackoff: time.Microsecond, MaxAttempts: 3,
	})
	for _, key := range []string{"paid", "unheard of", "panics", "silent"} {
		lose(t, guard, key)
	}
	lose(t, guard, "told", func(subject string) { // out of order, and while the attempt is in progress
		for _, e := range []store.ExternalEvent{
			{EventID: "e2", At: time.Unix(2, 0), Body: []byte("paid")},
			{EventID: "e1", At: time.Unix(1, 0), Body: []byte("cancelled")},
		} {
			e.Source, e.Scope, e.Subject = "bank", idOf("told").Scope, subject
			_, err := s.AddExternalEvent(t.Context(), e)
			must(t, err)
		}
	})
	for key, want := range map[string]store.State{
		"paid": store.StateCompleted, "told": store.StateCompleted, "unheard of": store.StateRetryable,
	} {
		runUntil(t, s, poller, key, func(rec *store.Record) bool { return rec.State == want })
	}
	for key, want := range map[string]string{"panics": "panic: no such field", "silent": "still at it"} {
		runUntil(t, s, poller, key, func(rec *store.Record) bool { return rec.DeadLetter })
		if rec := record(t, s, key); rec.ReconcileCount != 3 || !strings.Contains(rec.ReconcileError, want) {
			t.Errorf("%s was given up after %d attempts, because %q", key, rec.ReconcileCount, rec.ReconcileError)
		}
	}
	const want = "map[paid:[1] panics:[1 2 3] silent:[1 2 3] unheard of:[1]]" // not about what was told
	if got := fmt.Sprint(asked.attempts); got != want {
		t.Errorf("the bank was asked %s, want %s", got, want)
	}
}

// TestOperatorOnAFile: dead letters are listed, found and settled, and all of it is in the history.
func TestOperatorOnAFile(t *testing.T) {
	t.Parallel()
	s := openFile(t)
	guard := newGuard(t, s)
	operator, err := reconcile.NewOperator(guard, s)
	must(t, err)
	zoe := reconcile.By{Who: "zoe", Why: "the bank told me"}
	downstreamKey := ""
	lose(t, guard, "k", func(key string) { downstreamKey = key })
	rec := record(t, s, "k")
	claim := store.Claim{ID: rec.ID, Attempt: rec.Attempt}
	must(t, s.BeginReconcile(t.Context(), claim, 0, time.Hour))
	must(t, s.Postpone(t.Context(), claim, store.Postponement{
		Count: 1, Wait: time.Hour, MaxAttempts: 1,
		Reason: "gave up",
	}))
	letters, err := operator.DeadLetters(t.Context(), store.ID{}, 10)
	if err != nil || len(letters) != 1 || letters[0].ReconcileError != "gave up" {
		t.Fatalf("dead letters are %+v, %v", letters, err)
	}
	found, err := operator.Find(t.Context(), reconcile.Query{Subject: downstreamKey, Steps: []string{"transfer"}})
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
