package reconcile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

// TestLostDownstreamSecret: a record whose keys cannot be derived any more is not settled by what is said about other keys. What to
// do is in its last error, and the other records are looked after as usual.
func TestLostDownstreamSecret(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		lose(t, store, "k")
		lost, otherSecret := newGuard("another secret of the tests")
		poller, err := reconcile.NewPoller(lost, store, reconcile.Config{Rules: map[string]reconcile.Rule{transfers: hearing(nil)}, Logger: quiet})
		must(t, err)
		desk, err := reconcile.NewDesk(lost, store)
		must(t, err)
		made, err := lost.DownstreamKey(&onceward.Record{ID: idOf("k"), DownstreamSecret: otherSecret}, "transfer")
		must(t, err)
		wrong := about("k", "e1", 1, "paid")
		wrong.Subject = made // the key that would be derived if the secret did not count
		apply(t, store, poller, wrong)
		apply(t, store, poller, about("k", "e2", 2, "paid"))
		wantUntouched(t, store, "k")
		run(t, poller, reconcile.Report{Postponed: 1})
		wantState(t, store, "k", onceward.StateUnknown)
		if rec := record(t, store, "k"); !strings.Contains(rec.ReconcileError, "put the secret back") {
			t.Errorf("B6: the record says %q", rec.ReconcileError)
		}
		found, err := desk.Find(t.Context(), reconcile.Query{Subject: made, Steps: []string{"transfer"}})
		if !errors.Is(err, onceward.ErrUnreadable) || len(found) != 0 {
			t.Errorf("B6: found %d, %v", len(found), err)
		}
		if found, err := desk.Find(t.Context(), reconcile.Query{Subject: "ch_1"}); err != nil || len(found) != 0 {
			t.Errorf("by a provider's id: found %d, %v", len(found), err)
		}
		ask(t, newPoller(t, store, hearing(nil), reconcile.Config{}), "k", reconcile.Report{Completed: 1}) // the secret is back
	})
}

// TestNoticesOfAnotherScope is B6: what may be said about one scope says nothing about another, in either way of being read.
func TestNoticesOfAnotherScope(t *testing.T) {
	for name, bind := range map[string]func(*onceward.Notice){
		"another scope": func(n *onceward.Notice) { n.Scope = "mallory" },
		"none":          func(n *onceward.Notice) { n.Scope = "" },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				lose(t, store, "k")
				poller := newPoller(t, store, hearing(nil), reconcile.Config{})
				n := about("k", "e1", 1, "paid")
				bind(&n)
				apply(t, store, poller, n)
				wantUntouched(t, store, "k")
				run(t, poller, reconcile.Report{Postponed: 1})
				// Nor does it keep the right one from being kept, or change what that says.
				n.EventID, n.At = "e2", n.At.Add(1)
				keep(t, store, n)
				apply(t, store, poller, about("k", "e1", 1, "processing"))
				wantState(t, store, "k", onceward.StateUnknown)
				n = about("k", "e3", 3, "paid")
				n.Scope, n.AnyScope = "", true
				apply(t, store, poller, n)
				wantState(t, store, "k", onceward.StateCompleted)
			})
		})
	}
}
