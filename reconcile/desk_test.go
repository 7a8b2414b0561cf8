package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

func newDesk(t *testing.T, store onceward.Store) *reconcile.Desk {
	t.Helper()
	desk, err := reconcile.NewDesk(store)
	must(t, err)
	return desk
}

// act is something that a person can do about an unknown record.
type act struct {
	do   func(ctx context.Context, d *reconcile.Desk, by reconcile.By, c onceward.Claim) error
	name string // in the audit
	want onceward.State
}

var acts = map[string]act{
	"completed": {func(ctx context.Context, d *reconcile.Desk, by reconcile.By, c onceward.Claim) error {
		return d.ResolveCompleted(ctx, by, c, onceward.Completion{Response: paid, ProviderID: "ch_1"})
	}, "resolve completed", onceward.StateCompleted},
	"not executed": {func(ctx context.Context, d *reconcile.Desk, by reconcile.By, c onceward.Claim) error {
		return d.ResolveNotExecuted(ctx, by, c)
	}, "resolve not executed", onceward.StateRetryable},
	"retry now": {func(ctx context.Context, d *reconcile.Desk, by reconcile.By, c onceward.Claim) error {
		return d.RetryNow(ctx, by, c)
	}, "retry now", onceward.StateUnknown},
	"bust by force": {func(ctx context.Context, d *reconcile.Desk, by reconcile.By, c onceward.Claim) error {
		return d.Bust(ctx, by, c.ID, true)
	}, "bust by force", onceward.StateExpired},
}

func TestActs(t *testing.T) {
	for name, a := range acts {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				claim := lose(t, store, "k")
				giveUp(t, store, claim)
				must(t, a.do(t.Context(), newDesk(t, store), zoe, claim))
				rec := record(t, store, "k")
				if rec.State != a.want || rec.DeadLetter {
					t.Errorf("the record is %s, dead letter %t, want %s", rec.State, rec.DeadLetter, a.want)
				}
				if rec.State == onceward.StateUnknown && (rec.ReconcileCount != 0 || rec.ReconcileAt.After(time.Now())) {
					t.Errorf("it is due %s after %d tries, want now with all of them", rec.ReconcileAt, rec.ReconcileCount)
				}
				want := fmt.Sprintf("zoe: %s, the bank told me []\nzoe: %s, the bank told me [done]", a.name, a.name)
				if got := audit(t, store, "k"); got != want {
					t.Errorf("the audit says\n%s\nwant\n%s", got, want)
				}
				wantAttempts(t, store, claim)
			})
		})
	}
}

// wantAttempts checks that each entry about a record names the attempt that it was about.
func wantAttempts(t *testing.T, store onceward.Auditor, c onceward.Claim) {
	t.Helper()
	entries, err := store.Audit(t.Context(), c.ID)
	must(t, err)
	for _, e := range entries {
		if e.Attempt != c.Attempt {
			t.Errorf("I16: the audit says %q of attempt %d, want %d", e.Action, e.Attempt, c.Attempt)
		}
	}
}

// TestActThatMayHaveBeenDone: after a failure of the store nobody knows, and the audit does not say that it failed.
func TestActThatMayHaveBeenDone(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		claim := lose(t, store, "k")
		store.before = func(call string) error {
			if call != "resolve" {
				return nil
			}
			must(t, store.Store.ResolveCompleted(t.Context(), claim, &onceward.Completion{Response: paid}))
			return errDown // the reply was lost
		}
		if err := acts["completed"].do(t.Context(), newDesk(t, store), zoe, claim); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
		if got := audit(t, store, "k"); !strings.Contains(got, "[not known whether it was done: ") {
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
		err := newDesk(t, store).Bust(t.Context(), zoe, claim.ID, true)
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
				for _, by := range []reconcile.By{{}, {Who: "zoe"}, {Why: "the bank told me"}, {Who: " ", Why: "the bank told me"}, {Who: "zoe", Why: "\t\n"}} {
					if err := a.do(t.Context(), newDesk(t, store), by, claim); err == nil {
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
				desk := newDesk(t, store)
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
				if err := a.do(t.Context(), desk, zoe, claim); !errors.Is(err, errDown) || !strings.Contains(err.Error(), "nothing was done") {
					t.Errorf("without an audit: %v", err)
				}
				wantUntouched(t, store.Store, "k")
				entries, most = 0, 1
				must(t, a.do(t.Context(), desk, zoe, claim))
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
		must(t, acts["completed"].do(t.Context(), newDesk(t, store), zoe, claim))
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
				store := memory.New()
				old := lose(t, store, "k")
				must(t, store.ResolveNotExecuted(t.Context(), old, "somebody was faster"))
				lose(t, store, "k")
				if err := a.do(t.Context(), newDesk(t, store), zoe, old); !errors.Is(err, onceward.ErrFenced) {
					t.Errorf("an act on an attempt that is past: %v, want it refused", err)
				}
				wantUntouched(t, store, "k")
				entries, err := store.Audit(t.Context(), idOf("k"))
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
		if err := acts["completed"].do(ctx, newDesk(t, store), zoe, claim); !errors.Is(err, context.Canceled) {
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
		store := memory.New()
		desk := newDesk(t, store)
		claim := lose(t, store, "k")
		if err := desk.Bust(t.Context(), zoe, claim.ID, false); !errors.Is(err, onceward.ErrFenced) {
			t.Errorf("without force: %v", err)
		}
		wantUntouched(t, store, "k")
		must(t, desk.Bust(t.Context(), zoe, claim.ID, true))
		if _, err := store.Complete(t.Context(), claim, &onceward.Completion{Response: paid}); !errors.Is(err, onceward.ErrFenced) {
			t.Errorf("the owner came back and got %v", err)
		}
		must(t, desk.Bust(t.Context(), zoe, claim.ID, false)) // what is left of it goes without force
		if err := desk.Bust(t.Context(), zoe, claim.ID, true); !errors.Is(err, onceward.ErrNotFound) {
			t.Errorf("what is gone: %v", err)
		}
	})
}

func TestHistory(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		desk := newDesk(t, store)
		claim := lose(t, store, "k")
		ask(t, newPoller(t, store, reconcile.Rule{Resolver: always(reconcile.Completed(paid, ""))}, reconcile.Config{}), "k", reconcile.Report{Completed: 1})
		must(t, store.AddFinding(t.Context(), onceward.Finding{Claim: claim, Response: onceward.Response{Status: 500}, At: time.Now()}))
		h, err := desk.History(t.Context(), claim.ID)
		must(t, err)
		if h.Record.State != onceward.StateCompleted || len(h.Findings) != 1 || len(h.Audit) != 2 || h.Audit[0].Actor != "reconciler" {
			t.Errorf("the history is %+v", h)
		}
		must(t, desk.Bust(t.Context(), zoe, claim.ID, false))
		h, err = desk.History(t.Context(), claim.ID)
		must(t, err)
		if h.Record.State != onceward.StateNone || len(h.Findings) != 1 || len(h.Audit) != 4 || h.Audit[3].Action != "bust" {
			t.Errorf("when the record is gone, the history is %+v", h)
		}
		wantAttempts(t, store, claim)
		if h, err = desk.History(t.Context(), idOf("nobody")); err != nil || len(h.Audit)+len(h.Findings) != 0 {
			t.Errorf("of nothing the history is %+v, %v", h, err)
		}
	})
}

func TestHistoryNeedsTheStore(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New(), before: func(string) error { return errDown }}
		if _, err := newDesk(t, store).History(t.Context(), idOf("k")); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
		if _, err := newDesk(t, store).DeadLetters(t.Context(), onceward.ID{}, 1); !errors.Is(err, errDown) {
			t.Errorf("got %v", err)
		}
	})
}
