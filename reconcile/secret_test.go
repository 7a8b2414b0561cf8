package reconcile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestLostDownstreamSecret: a record whose keys cannot be derived any more is not settled by what is said about other
// keys. What to do is in its last error, and the other records are looked after as usual.
func TestLostDownstreamSecret(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		lost, otherSecret := newGuard("another secret of the tests")
		poller, err := reconcile.NewPoller(lost, s, reconcile.Config{Rules: map[string]reconcile.Rule{transfers: hearing(nil)}, Logger: quiet})
		must(t, err)
		operator, err := reconcile.NewOperator(lost, s)
		must(t, err)
		made, err := lost.DownstreamKey(&store.Record{ID: idOf("k"), DownstreamSecret: otherSecret}, "transfer")
		must(t, err)
		wrong := about("k", "e1", 1, "paid")
		wrong.Subject = made // the key that would be derived if the secret did not count
		apply(t, s, poller, wrong)
		apply(t, s, poller, about("k", "e2", 2, "paid"))
		wantUntouched(t, s, "k")
		run(t, poller, reconcile.Report{Postponed: 1})
		wantState(t, s, "k", store.StateUnknown)
		if rec := record(t, s, "k"); !strings.Contains(rec.ReconcileError, "put the secret back") {
			t.Errorf("B6: the record says %q", rec.ReconcileError)
		}
		found, err := operator.Find(t.Context(), reconcile.Query{Subject: made, Steps: []string{"transfer"}})
		if !errors.Is(err, store.ErrUnreadable) || len(found) != 0 {
			t.Errorf("B6: found %d, %v", len(found), err)
		}
		if found, err := operator.Find(t.Context(), reconcile.Query{Subject: "ch_1"}); err != nil || len(found) != 0 {
			t.Errorf("by a provider's id: found %d, %v", len(found), err)
		}
		ask(t, newPoller(t, s, hearing(nil), reconcile.Config{}), "k", reconcile.Report{Completed: 1}) // the secret is back
	})
}

// TestNoticesOfAnotherScope is B6: what may be said about one scope says nothing about another, in either way of being
// read.
func TestExternalEventsOfAnotherScope(t *testing.T) {
	for name, bind := range map[string]func(*store.ExternalEvent){
		"another scope": func(n *store.ExternalEvent) { n.Scope = "mallory" },
		"none":          func(n *store.ExternalEvent) { n.Scope = "" },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				lose(t, s, "k")
				poller := newPoller(t, s, hearing(nil), reconcile.Config{})
				n := about("k", "e1", 1, "paid")
				bind(&n)
				apply(t, s, poller, n)
				wantUntouched(t, s, "k")
				run(t, poller, reconcile.Report{Postponed: 1})
				// Nor does it keep the right one from being kept, or change what that says.
				n.EventID, n.At = "e2", n.At.Add(1)
				keep(t, s, n)
				apply(t, s, poller, about("k", "e1", 1, "processing"))
				wantState(t, s, "k", store.StateUnknown)
				n = about("k", "e3", 3, "paid")
				n.Scope, n.AnyScope = "", true
				apply(t, s, poller, n)
				wantState(t, s, "k", store.StateCompleted)
			})
		})
	}
}
