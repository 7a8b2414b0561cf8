package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

func newOperator(t *testing.T, store store.Store) *reconcile.Operator {
	t.Helper()
	operator, err := reconcile.NewOperator(guard, store)
	must(t, err)
	return operator
}

// act is something that a person can do about an unknown record.
type act struct {
	do   func(ctx context.Context, d *reconcile.Operator, by reconcile.By, c store.Claim) error
	name string // in the audit
	want store.State
}

var acts = map[string]act{
	"completed": {func(ctx context.Context, d *reconcile.Operator, by reconcile.By, c store.Claim) error {
		return d.ResolveCompleted(ctx, by, c, store.Completion{Response: paid, ProviderID: "ch_1"})
	}, "resolve completed", store.StateCompleted},
	"not executed": {func(ctx context.Context, d *reconcile.Operator, by reconcile.By, c store.Claim) error {
		return d.ResolveNotExecuted(ctx, by, c)
	}, "resolve not executed", store.StateRetryable},
	"retry now": {func(ctx context.Context, d *reconcile.Operator, by reconcile.By, c store.Claim) error {
		return d.RetryNow(ctx, by, c)
	}, "retry now", store.StateUnknown},
	"bust by force": {func(ctx context.Context, d *reconcile.Operator, by reconcile.By, c store.Claim) error {
		return d.Bust(ctx, by, c.ID, true)
	}, "bust by force", store.StateExpired},
}

func TestActs(t *testing.T) {
	for name, a := range acts {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				claim := lose(t, s, "k")
				giveUp(t, s, claim)
				must(t, a.do(t.Context(), newOperator(t, s), zoe, claim))
				rec := record(t, s, "k")
				if rec.State != a.want || rec.DeadLetter {
					t.Errorf("the record is %s, dead letter %t, want %s", rec.State, rec.DeadLetter, a.want)
				}
				if rec.State == store.StateUnknown && (rec.ReconcileCount != 0 || rec.ReconcileAt.After(time.Now())) {
					t.Errorf("it is due %s after %d attempts, want now with all of them", rec.ReconcileAt, rec.ReconcileCount)
				}
				want := fmt.Sprintf("zoe: %s, the bank told me []\nzoe: %s, the bank told me [done]", a.name, a.name)
				if got := audit(t, s, "k"); got != want {
					t.Errorf("the audit says\n%s\nwant\n%s", got, want)
				}
				wantAttempts(t, s, claim)
			})
		})
	}
}

// wantAttempts checks that each entry about a record names the attempt that it was about.
func wantAttempts(t *testing.T, store store.Auditor, c store.Claim) {
	t.Helper()
	entries, err := store.Audit(t.Context(), c.ID)
	must(t, err)
	for _, e := range entries {
		if e.Attempt != c.Attempt {
			t.Errorf("I16: the audit says %q of attempt %d, want %d", e.Action, e.Attempt, c.Attempt)
		}
	}
}

// TestActThatMayHaveBeenDone: after a failure of the store it is not known, and the audit does not claim that it
// failed.
func TestActThatMayHaveBeenDone(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := &faulty{Store: memory.New()}
		claim := lose(t, s, "k")
		s.before = func(call string) error {
			if call != "resolve" {
				return nil
			}
			must(t, s.Store.ResolveCompleted(t.Context(), claim, &store.Completion{Response: paid}))
			return errDown // the reply was lost
		}
		if err := acts["completed"].do(t.Context(), newOperator(t, s), zoe, claim); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
		if got := audit(t, s, "k"); !strings.Contains(got, "[not known whether it was done: ") {
			t.Errorf("I16: the audit says %s", got)
		}
	})
}

// TestActThatWasNotSent failed: nothing was done, and the audit records it.
func TestActThatWasNotSent(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := &faulty{Store: memory.New()}
		claim := lose(t, s, "k")
		s.before = func(call string) error {
			if call == "resolve" {
				return store.ErrNotSent
			}
			return nil
		}
		if err := acts["completed"].do(t.Context(), newOperator(t, s), zoe, claim); !errors.Is(err, store.ErrNotSent) {
			t.Errorf("got %v", err)
		}
		if got := audit(t, s, "k"); !strings.Contains(got, "[failed: ") {
			t.Errorf("I16: the audit says %s", got)
		}
	})
}

func TestBustNeedsToSeeTheRecord(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		claim := lose(t, store, "k")
		store.before = func(call string) error {
			if call == "get" {
				return errDown
			}
			return nil
		}
		err := newOperator(t, store).Bust(t.Context(), zoe, claim.ID, true)
		if !errors.Is(err, errDown) || !strings.Contains(err.Error(), "nothing was done") {
			t.Errorf("got %v", err)
		}
		wantUntouched(t, store.Store, "k")
	})
}

func TestActsNeedWhoAndWhy(t *testing.T) {
	for name, a := range acts {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				claim := lose(t, store, "k")
				for _, by := range []reconcile.By{
					{},
					{Who: "zoe"},
					{Why: "the bank told me"},
					{Who: " ", Why: "the bank told me"},
					{Who: "zoe", Why: "\t\n"},
				} {
					if err := a.do(t.Context(), newOperator(t, store), by, claim); err == nil {
						t.Errorf("%+v was accepted", by)
					}
				}
				wantUntouched(t, store, "k")
				if got := audit(t, store, "k"); got != "" {
					t.Errorf("the audit says %s", got)
				}
			})
		})
	}
}

// TestAuditIsDown: what cannot be written down is not done. What was done counts, also if its end cannot be written.
func TestAuditIsDown(t *testing.T) {
	for name, a := range acts {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := &faulty{Store: memory.New()}
				claim := lose(t, store, "k")
				operator := newOperator(t, store)
				entries, most := 0, 0
				store.before = func(call string) error {
					if call != "audit" {
						return nil
					}
					if entries++; entries > most {
						return errDown
					}
					return nil
				}
				if err := a.do(t.Context(), operator, zoe, claim); !errors.Is(err, errDown) ||
					!strings.Contains(err.Error(), "nothing was done") {
					t.Errorf("without an audit: %v", err)
				}
				wantUntouched(t, store.Store, "k")
				entries, most = 0, 1
				must(t, a.do(t.Context(), operator, zoe, claim))
				wantState(t, store.Store, "k", a.want)
				if got, want := audit(t, store, "k"), fmt.Sprintf("zoe: %s, the bank told me []", a.name); got != want {
					t.Errorf("the audit says %s, want %s", got, want)
				}
			})
		})
	}
}

// TestAuditComesBeforeTheAct looks into the audit while the act is done.
func TestAuditComesBeforeTheAct(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		claim := lose(t, store, "k")
		during := ""
		store.before = func(call string) error {
			if call == "resolve" {
				during = audit(t, store, "k")
			}
			return nil
		}
		must(t, acts["completed"].do(t.Context(), newOperator(t, store), zoe, claim))
		if want := "zoe: resolve completed, the bank told me []"; during != want {
			t.Errorf("during the act the audit says %q, want %q", during, want)
		}
	})
}

// TestFailedActIsInTheAudit with what it failed by, and the attempt that it was for.
func TestFailedActIsInTheAudit(t *testing.T) {
	for name, a := range acts {
		if a.name == "bust by force" {
			continue // nothing refuses it
		}
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				old := lose(t, s, "k")
				must(t, s.ResolveNotExecuted(t.Context(), old, "another was faster"))
				lose(t, s, "k")
				if err := a.do(t.Context(), newOperator(t, s), zoe, old); !errors.Is(err, store.ErrFenced) {
					t.Errorf("an act on an attempt that is past: %v, want it refused", err)
				}
				wantUntouched(t, s, "k")
				entries, err := s.Audit(t.Context(), idOf("k"))
				must(t, err)
				if len(entries) != 2 || entries[1].Attempt != old.Attempt || !strings.HasPrefix(entries[1].Outcome, "failed: ") {
					t.Errorf("the audit says %+v", entries)
				}
			})
		})
	}
}

// TestOutcomeIsWrittenAfterTheEnd: who acts may have gone away before the act has ended.
func TestOutcomeIsWrittenAfterTheEnd(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		claim := lose(t, store, "k")
		ctx, cancel := context.WithCancel(t.Context())
		store.before = func(call string) error {
			if call == "resolve" {
				cancel()
			}
			return nil
		}
		if err := acts["completed"].do(ctx, newOperator(t, store), zoe, claim); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if got := audit(t, store, "k"); !strings.HasSuffix(got, "[not known whether it was done: context canceled]") {
			t.Errorf("the audit says %s", got)
		}
	})
}

// TestBust: what is settled can be removed; what is not only by force, and then its owner is fenced.
func TestBust(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		claim := lose(t, s, "k")
		if err := operator.Bust(t.Context(), zoe, claim.ID, false); !errors.Is(err, store.ErrFenced) {
			t.Errorf("without force: %v", err)
		}
		wantUntouched(t, s, "k")
		must(t, operator.Bust(t.Context(), zoe, claim.ID, true))
		if _, err := s.Complete(t.Context(), claim, &store.Completion{Response: paid}); !errors.Is(err, store.ErrFenced) {
			t.Errorf("the owner came back and got %v", err)
		}
		must(t, operator.Bust(t.Context(), zoe, claim.ID, false)) // what is left of it goes without force
		if err := operator.Bust(t.Context(), zoe, claim.ID, true); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("what is gone: %v", err)
		}
	})
}

// flying is a store one of whose transactions, which is at every operation, asks what became of its COMMIT.
type flying struct {
	*memory.Store
	store.Transactor
}

func (flying) InFlight(store.ID) bool { return true }

// TestBustWaitsForTheTransaction: what the owner of a transaction still asks for is not removed, unless by force (E7).
func TestBustWaitsForTheTransaction(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := flying{Store: memory.New()}
		operator := newOperator(t, s)
		claim := lose(t, s.Store, "k")
		must(t, operator.ResolveCompleted(t.Context(), zoe, claim, store.Completion{Response: paid}))
		if err := operator.Bust(t.Context(), zoe, claim.ID, false); !errors.Is(err, store.ErrBusy) {
			t.Errorf("E7: without force: %v, want ErrBusy", err)
		}
		must(t, operator.Bust(t.Context(), zoe, claim.ID, true))
	})
}

func TestHistory(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		claim := lose(t, s, "k")
		ask(t, newPoller(t, s, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{}), "k",
			reconcile.Report{Completed: 1})
		must(t, s.AddLateCompletion(t.Context(), store.LateCompletion{
			Claim: claim, Response: store.Response{Status: 500},
			At: time.Now(),
		}))
		h, err := operator.History(t.Context(), claim.ID)
		must(t, err)
		if h.Record.State != store.StateCompleted || len(h.LateCompletions) != 1 || len(h.Audit) != 2 ||
			h.Audit[0].Actor != "reconciler" {
			t.Errorf("the history is %+v", h)
		}
		must(t, operator.Bust(t.Context(), zoe, claim.ID, false))
		h, err = operator.History(t.Context(), claim.ID)
		must(t, err)
		if h.Record.State != store.StateNone || len(h.LateCompletions) != 1 || len(h.Audit) != 4 ||
			h.Audit[3].Action != "bust" {
			t.Errorf("when the record is gone, the history is %+v", h)
		}
		wantAttempts(t, s, claim)
		if h, err = operator.History(t.Context(), idOf("nobody")); err != nil || len(h.Audit)+len(h.LateCompletions) != 0 {
			t.Errorf("of nothing the history is %+v, %v", h, err)
		}
	})
}

func TestHistoryNeedsTheStore(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := &faulty{Store: memory.New(), before: func(string) error { return errDown }}
		if _, err := newOperator(t, s).History(t.Context(), idOf("k")); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
		if _, err := newOperator(t, s).DeadLetters(t.Context(), store.ID{}, 1); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
	})
}

func keysOf(records []store.Record) (keys []string) {
	for _, rec := range records {
		keys = append(keys, rec.Key)
	}
	slices.Sort(keys)
	return keys
}

func TestDeadLetters(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		for i := range 7 {
			claim := lose(t, s, fmt.Sprint("k", i))
			if i%2 == 0 {
				giveUp(t, s, claim)
			}
		}
		settled := lose(t, s, "settled")
		giveUp(t, s, settled)
		must(t, operator.ResolveNotExecuted(t.Context(), zoe, settled))

		all, err := operator.DeadLetters(t.Context(), store.ID{}, 0)
		must(t, err)
		if got, want := keysOf(all), []string{"k0", "k2", "k4", "k6"}; !slices.Equal(got, want) ||
			all[0].ReconcileError != "gave up" {
			t.Errorf("dead letters are %s, want %s with their reason", got, want)
		}
		var paged []string
		for page, after := 0, (store.ID{}); page < 3; page++ {
			letters, err := operator.DeadLetters(t.Context(), after, 3)
			must(t, err)
			if want := []int{3, 1, 0}[page]; len(letters) != want {
				t.Errorf("page %d has %s, want %d", page, keysOf(letters), want)
			}
			for _, rec := range letters {
				paged, after = append(paged, rec.Key), rec.ID
			}
		}
		slices.Sort(paged)
		if !slices.Equal(paged, keysOf(all)) {
			t.Errorf("on all pages are %s", paged)
		}
	})
}

func TestFind(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		operator := newOperator(t, s)
		lose(t, s, "unknown")
		start(t, s, transfers, "running")
		must(t, operator.ResolveCompleted(t.Context(), zoe, lose(t, s, "done"),
			store.Completion{Response: paid, ProviderID: "ch_1"}))
		steps := []string{"transfer", "notify"}
		for name, c := range map[string]struct {
			query reconcile.Query
			want  []string
		}{
			"by provider's id":               {reconcile.Query{Subject: "ch_1"}, []string{"done"}},
			"by provider's id, in its state": {reconcile.Query{Subject: "ch_1", State: store.StateCompleted}, []string{"done"}},
			"by provider's id, in another":   {reconcile.Query{Subject: "ch_1", State: store.StateUnknown}, nil},
			"by downstream key": {
				reconcile.Query{Subject: downstreamKey("unknown", "transfer"), Steps: steps},
				[]string{"unknown"},
			},
			"by that of another step": {
				reconcile.Query{Subject: downstreamKey("running", "notify"), Steps: steps},
				[]string{"running"},
			},
			"by that of a step not named": {
				reconcile.Query{Subject: downstreamKey("unknown", "refund"), Steps: steps},
				[]string{"unknown"},
			},
			"by downstream key without steps": {reconcile.Query{Subject: downstreamKey("unknown", "transfer")}, []string{"unknown"}},
			"by downstream key, in another state": {
				reconcile.Query{Subject: downstreamKey("unknown", "transfer"), State: store.StateCompleted}, nil,
			},
			"by hash":                {reconcile.Query{Subject: idOf("running").Hash()}, []string{"running"}},
			"by that of what is not": {reconcile.Query{Subject: idOf("never").Hash()}, nil},
			"by the key of what is not": {
				reconcile.Query{Subject: downstreamKey("never", "transfer"), Steps: steps}, nil,
			},
			"by what nobody has": {reconcile.Query{Subject: "ch_2", Steps: steps}, nil},
			"by nothing":         {reconcile.Query{Steps: steps}, nil},
		} {
			found, err := operator.Find(t.Context(), c.query)
			if err != nil || !slices.Equal(keysOf(found), c.want) {
				t.Errorf("%s: found %s, %v, want %s", name, keysOf(found), err, c.want)
			}
		}
		for i := range 20 {
			must(t, operator.ResolveCompleted(t.Context(), zoe, lose(t, s, fmt.Sprint("k", i)),
				store.Completion{Response: paid, ProviderID: "same"}))
		}
		if found, err := operator.Find(t.Context(), reconcile.Query{Subject: "same"}); err != nil || len(found) != 10 {
			t.Errorf("of 20 were found %d, %v, want 10", len(found), err)
		}
	})
}
