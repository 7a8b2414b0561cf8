package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/reconcile/ledger"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// poisoned is a provider that cannot list what a bad day has in it.
func poisoned(l *ledgers, bad time.Time) ledger.Source {
	return func(ctx context.Context, w ledger.Window, after string) iter.Seq2[ledger.Entry, error] {
		if w.To.Equal(bad) {
			return stream(nil, errAway)
		}
		return l.Provider(ctx, w, after)
	}
}

// TestOneBadWindow does not hold up the others, is retried and shown for as long as it takes, and is given up by a
// person alone.
func TestOneBadWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		store, got := memory.New(), &report{}
		l := &ledgers{entries: effects(began.Add(12*time.Hour), day, 30)}
		config := l.config(store, got)
		bad := began.Add(3 * day)
		config.Provider = poisoned(l, bad)
		var events []ledger.WindowEvent
		config.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
			if e, ok := e.(ledger.WindowEvent); ok {
				events = append(events, e)
			}
		})
		stop := inBackground(t, newComparer(t, config))
		time.Sleep(32 * day)
		stop()
		if n := len(got.different()); n != 29 {
			t.Errorf("%d effects were reported, want all but the one of the bad day", n)
		}
		operator := newComparer(t, config)
		s := status(t, operator)
		if len(s.Uncompared) != 1 || !s.Uncompared[0].Window.To.Equal(bad) || s.Uncompared[0].Attempts < 25*24 {
			t.Fatalf("uncompared is %+v", s.Uncompared)
		}
		requireGivenUp(t, operator, store, s.Uncompared[0].Window)
		last := events[len(events)-1]
		if last.Outcome != "given up" || !strings.Contains(last.Run, s.Uncompared[0].Window.String()) {
			t.Errorf("the observer was told %+v", last)
		}
		if failed := events[len(events)-2]; failed.Outcome != "failed" && failed.Outcome != "compared" {
			t.Errorf("the observer was told %+v", failed)
		}
	})
}

// requireGivenUp gives a window up, and checks that this needs a name and a reason, and is in the audit.
func requireGivenUp(t *testing.T, c *ledger.Comparer, st *memory.Store, w ledger.Window) {
	t.Helper()
	by := reconcile.By{Who: "pat", Why: "the provider has lost it"}
	for _, lacking := range []reconcile.By{{}, {Who: by.Who}, {Why: by.Why}} {
		if err := c.GiveUp(t.Context(), lacking, w); err == nil || len(status(t, c).Uncompared) != 1 {
			t.Errorf("given up by %+v: %v", lacking, err)
		}
	}
	other := ledger.Window{From: w.From, To: w.To.Add(1)}
	if err := c.GiveUp(t.Context(), by, other); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("giving up what is not there: %v", err)
	}
	there := time.FixedZone("there", 3600)
	if err := c.GiveUp(t.Context(), by, ledger.Window{From: w.From.In(there), To: w.To.In(there)}); err != nil {
		t.Error(err)
	}
	if s := status(t, c); len(s.Uncompared) != 0 {
		t.Errorf("still uncompared are %+v", s.Uncompared)
	}
	if err := c.GiveUp(t.Context(), by, w); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("giving it up again: %v", err)
	}
	id := store.ID{Scope: ledger.DefaultScope, Key: "comparison test"}
	entries, err := st.Audit(t.Context(), id)
	if err != nil || len(entries) != 2 {
		t.Fatalf("the audit has %+v, %v", entries, err)
	}
	for i, outcome := range []string{"", "done"} {
		e := entries[i]
		act := e.Action == "give up window "+w.String() && e.Attempt != 0 && e.Outcome == outcome
		if !act || e.Actor != by.Who || e.Reason != by.Why {
			t.Errorf("the audit says %+v, want outcome %q", e, outcome)
		}
	}
}

// unaudited is a store that keeps no audit, or fails to.
type unaudited struct{ store.Store }

type failingAudit struct{ *memory.Store }

func (failingAudit) AddAudit(context.Context, store.AuditEntry) error { return errAway }

// TestNothingIsGivenUpWithoutAnAudit.
func TestNothingIsGivenUpWithoutAnAudit(t *testing.T) {
	t.Parallel()
	s := memory.New()
	l := &ledgers{}
	w := status(t, newComparer(t, l.config(s, &report{}))).Uncompared[0].Window
	by := reconcile.By{Who: "pat", Why: "a test"}
	for _, test := range []struct {
		store store.Store
		want  error
	}{{unaudited{s}, errors.ErrUnsupported}, {failingAudit{s}, errAway}} {
		comparer := newComparer(t, l.config(test.store, &report{}))
		if err := comparer.GiveUp(t.Context(), by, w); !errors.Is(err, test.want) {
			t.Errorf("%v, want %v", err, test.want)
		}
		if n := len(status(t, comparer).Uncompared); n != 1 {
			t.Errorf("%d windows are uncompared", n)
		}
	}
}

// TestAPersonWaitsForANode that is comparing, and then gives up what it could not compare.
func TestAPersonWaitsForANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		config := config(store, "a", "a", &report{})
		config.Provider = breaking(list("a"), func() { time.Sleep(30 * time.Second); panic("the test panics") }, 0)
		comparer := newComparer(t, config)
		defer inBackground(t, comparer)()
		synctest.Wait()
		if err := comparer.GiveUp(t.Context(), reconcile.By{Who: "pat", Why: "a test"}, window); err != nil {
			t.Error(err)
		}
		if n := len(status(t, comparer).Uncompared); n != 0 {
			t.Errorf("%d windows are uncompared", n)
		}
	})
}

// TestAJournalOfANewerVersion is left alone: to begin again would forget what is due.
func TestAJournalOfANewerVersion(t *testing.T) {
	t.Parallel()
	for _, newer := range []store.Checkpoint{
		{Point: "journal 2"}, {Data: []byte(`{"begin":7}`)}, {Data: []byte(`{"next":"2026-01-01T00:00:00Z","more":1}`)},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			config := config(s, "a", "b", &report{})
			config.Provider = breaking(list("a"), nil, 0)
			if _, err := run(t, config); !errors.Is(err, errAway) {
				t.Fatal(err)
			}
			id := store.ID{Scope: ledger.DefaultScope, Key: "comparison test"}
			before, err := s.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			v, err := s.Reserve(t.Context(), &store.Reservation{
				ID: id, Fingerprints: []store.Fingerprint{before.Fingerprint}, Nonce: store.Nonce{1},
				Lease: time.Hour, Retention: time.Hour,
			})
			if err != nil || v.Decision != store.DecisionExecute {
				t.Fatal(v.Decision, err)
			}
			claim := store.Claim{ID: id, Attempt: v.Record.Attempt}
			err = s.Checkpoint(t.Context(), claim, newer)
			if err := errors.Join(err, s.Release(t.Context(), claim, "")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ledger.DefaultMinBackoff)
			comparer := newComparer(t, config)
			_, failed := comparer.RunOnce(t.Context())
			_, hidden := comparer.Status(t.Context())
			for _, err := range []error{failed, hidden} {
				if err == nil || !strings.Contains(err.Error(), "cannot be read") {
					t.Errorf("with %+v: %v", newer, err)
				}
			}
			after, err := s.Get(t.Context(), id)
			kept := newer.Data == nil || bytes.Equal(after.Data, newer.Data)
			if err != nil || after.State != store.StateRetryable || !kept {
				t.Errorf("with %+v the record is %+v, %v", newer, after, err)
			}
		})
	}
}
