package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// about is an external event of the bank's about the transfer of a key. When it happened is a number of seconds.
func about(key, event string, second int64, word string) store.ExternalEvent {
	return store.ExternalEvent{
		Source: "bank", Scope: idOf(key).Scope, EventID: event, Subject: downstreamKey(key,
			"transfer"), At: time.Unix(second, 0),
		Body: []byte(word),
	}
}

func keep(t *testing.T, store store.ExternalEventKeeper, externals ...store.ExternalEvent) {
	t.Helper()
	for _, n := range externals {
		_, err := store.AddExternalEvent(t.Context(), n)
		must(t, err)
	}
}

// lastWord believes the last external event.
func lastWord(_ context.Context, _ *store.Record, externals []store.ExternalEvent) (reconcile.Answer, error) {
	switch last := externals[len(externals)-1]; string(last.Body) {
	case "paid":
		return reconcile.Completed(paid, "ch_1"), nil
	case "cancelled":
		return reconcile.NotExecuted("cancelled"), nil
	case "lost":
		return reconcile.NotFound(), nil
	case "poison":
		panic("what is this?")
	case "garbled":
		return reconcile.Completed(paid, "ch_1"), errors.New("this is no JSON")
	default:
		return reconcile.StillUnknown(string(last.Body)), nil
	}
}

// hearing is the rule for a bank that sends reports, and can be queried too if there is a resolver.
func hearing(asked reconcile.Resolver) reconcile.Rule {
	return reconcile.Rule{Resolver: asked, Source: "bank", Steps: []string{"reserve", "transfer"}, Interpret: lastWord}
}

// TestExternalEventsComeFirst: the resolver is only queried if the external events are not conclusive.
func TestExternalEventsComeFirst(t *testing.T) {
	other := about("k", "e9", 9, "paid")
	other.Source = "another bank"
	for name, c := range map[string]struct {
		externals []store.ExternalEvent
		asked     int
		want      reconcile.Report
	}{
		"none":            {nil, 1, reconcile.Report{NotExecuted: 1}},
		"done":            {[]store.ExternalEvent{about("k", "e1", 1, "paid")}, 0, reconcile.Report{Completed: 1}},
		"not done":        {[]store.ExternalEvent{about("k", "e1", 1, "cancelled")}, 0, reconcile.Report{NotExecuted: 1}},
		"no longer known": {[]store.ExternalEvent{about("k", "e1", 1, "lost")}, 0, reconcile.Report{Postponed: 1}},
		"still at it":     {[]store.ExternalEvent{about("k", "e1", 1, "processing")}, 1, reconcile.Report{NotExecuted: 1}},
		"out of order": {
			[]store.ExternalEvent{about("k", "e2", 2, "paid"), about("k", "e1", 1, "processing")},
			0,
			reconcile.Report{Completed: 1},
		},
		"twice": {
			[]store.ExternalEvent{about("k", "e1", 1, "paid"), about("k", "e1", 1, "paid")},
			0,
			reconcile.Report{Completed: 1},
		},
		"unreadable":        {[]store.ExternalEvent{about("k", "e1", 1, "garbled")}, 1, reconcile.Report{NotExecuted: 1}},
		"poisonous":         {[]store.ExternalEvent{about("k", "e1", 1, "poison")}, 1, reconcile.Report{NotExecuted: 1}},
		"another's":         {[]store.ExternalEvent{about("j", "e1", 1, "paid")}, 1, reconcile.Report{NotExecuted: 1}},
		"of another source": {[]store.ExternalEvent{other}, 1, reconcile.Report{NotExecuted: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				keep(t, store, c.externals...)
				lose(t, store, "k")
				bank := always(reconcile.NotExecuted("the bank says so"))
				var log strings.Builder
				logger := slog.New(slog.NewTextHandler(&log, nil))
				run(t, newPoller(t, store, hearing(bank), reconcile.Config{Logger: logger}), c.want)
				bank.wantAsked(t, c.asked)
				line := map[reconcile.Report]string{
					{Completed: 1}: "outcome=completed by=", {NotExecuted: 1}: `outcome="not executed" by=`,
				}[c.want] + []string{`"external event"`, "resolver"}[c.asked]
				named := "operation=\"" + transfers + "\" key_hash=" + idOf("k").Hash()
				told := strings.Contains(log.String(), line) && strings.Contains(log.String(), named)
				if settled := c.want.Postponed == 0; told != settled {
					t.Errorf("M3: want the line %t, with %s and %s, in the log: %s", settled, named, line, &log)
				}
			})
		})
	}
}

// TestUnreadableExternalEventIsToldOf: if the resolver finds nothing either, the record contains the error in the
// external event.
func TestUnreadableExternalEventIsToldOf(t *testing.T) {
	for name, asked := range map[string]reconcile.Resolver{"with a resolver": &oracle{}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				keep(t, store, about("k", "e1", 1, "garbled"))
				lose(t, store, "k")
				ask(t, newPoller(t, store, hearing(asked), reconcile.Config{}), "k", reconcile.Report{Postponed: 1})
				if rec := record(t, store, "k"); rec.ReconcileError != "the query failed: this is no JSON" {
					t.Errorf("the reason is %q", rec.ReconcileError)
				}
			})
		})
	}
}

// TestExternalEventsCannotBeRead: no resolver is asked before they were.
func TestExternalEventsCannotBeRead(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		lose(t, store, "k")
		store.before = func(call string) error {
			if call == "external events" {
				return errDown
			}
			return nil
		}
		bank := always(reconcile.NotExecuted("the bank says so"))
		ask(t, newPoller(t, store, hearing(bank), reconcile.Config{}), "k", reconcile.Report{Postponed: 1})
		bank.wantAsked(t, 0)
	})
}

func apply(t *testing.T, store store.ExternalEventKeeper, poller *reconcile.Poller, n store.ExternalEvent) {
	t.Helper()
	keep(t, store, n)
	must(t, poller.Apply(t.Context(), n))
}

func TestApply(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		bank := &oracle{}
		poller := newPoller(t, s, hearing(bank), reconcile.Config{})
		lose(t, s, "k")
		lose(t, s, "other")
		loseAt(t, s, "POST /refunds", "no rule")
		foreign := about("k", "e1", 1, "paid")
		foreign.Source = "another bank"
		for _, n := range []store.ExternalEvent{
			foreign, about("no rule", "e2", 1, "paid"), about("nobody", "e3", 1, "paid"),
			{Source: "bank", Scope: "tenant", EventID: "e4", Subject: downstreamKey("k", "another step"), Body: []byte("paid")},
			{Source: "bank", Scope: "tenant", EventID: "e5", Body: []byte("paid")},
		} {
			apply(t, s, poller, n)
		}
		// An external event that was not kept first is hearsay.
		must(t, poller.Apply(t.Context(), about("k", "never kept", 1, "paid")))
		for _, key := range []string{"k", "other", "no rule"} {
			wantUntouched(t, s, key)
		}
		for range 2 {
			apply(t, s, poller, about("k", "e6", 2, "paid"))
			wantState(t, s, "k", store.StateCompleted)
			wantUntouched(t, s, "other")
		}
		// A report of another source is no reason to look.
		keep(t, s, about("other", "e7", 1, "paid"))
		foreign.Subject = about("other", "", 0, "").Subject
		must(t, poller.Apply(t.Context(), foreign))
		wantUntouched(t, s, "other")
		bank.wantAsked(t, 0)
	})
}

// TestApplyTooLate: the record was settled or removed while it was looked for, or while the external events were read.
func TestApplyTooLate(t *testing.T) {
	for _, during := range []string{"get", "external events"} {
		for name, meanwhile := range map[string]func(ctx context.Context, d *reconcile.Operator, c store.Claim) error{
			"settled": func(ctx context.Context, d *reconcile.Operator, c store.Claim) error {
				return d.ResolveNotExecuted(ctx, zoe, c)
			},
			"removed": func(ctx context.Context, d *reconcile.Operator, c store.Claim) error {
				return errors.Join(d.Bust(ctx, zoe, c.ID, true), d.Bust(ctx, zoe, c.ID, false))
			},
		} {
			t.Run(name+" during "+during, func(t *testing.T) {
				inTime(t, func(t *testing.T) {
					s := &faulty{Store: memory.New()}
					claim := lose(t, s, "k")
					keep(t, s, about("k", "e1", 1, "paid"))
					s.before = func(call string) error {
						if call == during {
							must(t, meanwhile(t.Context(), newOperator(t, s.Store), claim))
						}
						return nil
					}
					must(t, newPoller(t, s, hearing(nil), reconcile.Config{}).Apply(t.Context(), about("k", "e1", 1, "paid")))
					if rec, _ := s.Store.Get(t.Context(), claim.ID); rec.State == store.StateCompleted {
						t.Error("the external event has settled what was settled")
					}
				})
			})
		}
	}
}

// TestApplyWithoutNews: an external event without an outcome, sent again and again, queries no resolver and uses up no
// attempts.
func TestApplyWithoutNews(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		bank := &oracle{}
		poller := newPoller(t, s, hearing(bank), reconcile.Config{MaxAttempts: 3})
		lose(t, s, "k")
		for i := range 10 {
			apply(t, s, poller, about("k", "e1", 1, "processing"))
			apply(t, s, poller, about("k", fmt.Sprint("another ", i), 1, "processing"))
		}
		keep(t, s, about("k", "e2", 2, "garbled"))
		if err := poller.Apply(t.Context(), about("k", "e2", 2, "garbled")); err == nil {
			t.Error("an external event that cannot be interpreted is no error")
		}
		wantUntouched(t, s, "k")
		bank.wantAsked(t, 0)
		// What happened before the last one, and came after it, changes nothing; what happened after it counts.
		apply(t, s, poller, about("k", "e4", 4, "processing"))
		apply(t, s, poller, about("k", "e3", 3, "cancelled"))
		wantUntouched(t, s, "k")
		apply(t, s, poller, about("k", "e5", 5, "paid"))
		wantState(t, s, "k", store.StateCompleted)
	})
}

// TestApplyTooEarly: an external event about what is in progress, or not recorded at all, does nothing and stays.
func TestApplyTooEarly(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		bank := &oracle{}
		poller := newPoller(t, s, hearing(bank), reconcile.Config{})
		apply(t, s, poller, about("k", "e1", 1, "processing"))
		claim := start(t, s, transfers, "k")
		apply(t, s, poller, about("k", "e2", 2, "paid"))
		if rec := record(t, s, "k"); rec.State != store.StateInProgress || rec.Attempt != claim.Attempt {
			t.Fatalf("the record is %s", rec.State)
		}
		must(t, s.Abandon(t.Context(), claim, "no answer came"))
		time.Sleep(time.Millisecond)
		run(t, poller, reconcile.Report{Completed: 1})
		bank.wantAsked(t, 0)
	})
}

// TestApplyFails: a failure of the store is returned, and the external event is there for the poller.
func TestApplyFails(t *testing.T) {
	for _, away := range []string{"list", "get", "external events", "audit", "resolve"} {
		t.Run(away, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := &faulty{Store: memory.New()}
				lose(t, s, "k")
				keep(t, s, about("k", "e1", 1, "paid"))
				poller := newPoller(t, s, hearing(nil), reconcile.Config{})
				s.before = func(call string) error {
					if call == away {
						return errDown
					}
					return nil
				}
				if err := poller.Apply(t.Context(), about("k", "e1", 1, "paid")); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("got %v, want the store's failure", err)
				}
				wantUntouched(t, s.Store, "k")
				s.before = nil
				run(t, poller, reconcile.Report{Completed: 1})
			})
		})
	}
}

// TestExternalEventAboutADeadLetter: it counts when it is applied, and is found by the poller if that failed.
func TestExternalEventAboutADeadLetter(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		bank := &oracle{}
		poller := newPoller(t, s, hearing(bank), reconcile.Config{MaxAttempts: 1, MaxBackoff: 15 * time.Minute})
		lose(t, s, "applied")
		lose(t, s, "kept")
		lose(t, s, "not heard of")
		run(t, poller, reconcile.Report{Postponed: 3, DeadLetters: 3})
		bank.wantAsked(t, 3)
		apply(t, s, poller, about("applied", "e1", 1, "paid"))
		wantState(t, s, "applied", store.StateCompleted)
		keep(t, s, about("kept", "e2", 1, "paid"))
		time.Sleep(time.Minute)
		run(t, poller, reconcile.Report{}) // to look at them each time would cost too much
		time.Sleep(15 * time.Minute)
		run(t, poller, reconcile.Report{Completed: 1})
		wantState(t, s, "kept", store.StateCompleted)
		bank.wantAsked(t, 3)
	})
}

// TestExternalEventsOnly: without a resolver a record waits for its external event, and in the end for a person.
func TestExternalEventsOnly(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		poller := newPoller(t, store, hearing(nil), reconcile.Config{MaxAttempts: 2})
		lose(t, store, "k")
		ask(t, poller, "k", reconcile.Report{Postponed: 1})
		ask(t, poller, "k", reconcile.Report{Postponed: 1, DeadLetters: 1})
		if rec := record(t, store, "k"); rec.ReconcileError != "no external event has arrived" {
			t.Errorf("the reason is %q", rec.ReconcileError)
		}
	})
}

// TestLostDownstreamSecret: a record whose keys cannot be derived any more is not settled by what is said about other
// keys. What to do is in its last error, and the other records are looked after as usual.
func TestLostDownstreamSecret(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		lost, otherSecret := newGuard("another secret of the tests")
		var log strings.Builder
		poller, err := reconcile.NewPoller(lost, s, reconcile.Config{
			Rules: map[string]reconcile.Rule{transfers: hearing(nil)}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
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
		if named := "key_hash=" + idOf("k").Hash(); !strings.Contains(log.String(), "level=ERROR") ||
			!strings.Contains(log.String(), named) || !strings.Contains(log.String(), "Namespace") {
			t.Errorf("M3: the log is %s", &log)
		}
		found, err := operator.Find(t.Context(), reconcile.Query{Subject: made, Steps: []string{"transfer"}})
		if err != nil || len(found) != 0 {
			t.Errorf("B6: found %d, %v", len(found), err)
		}
		if found, err := operator.Find(t.Context(), reconcile.Query{Subject: "ch_1"}); err != nil || len(found) != 0 {
			t.Errorf("by a provider's id: found %d, %v", len(found), err)
		}
		ask(t, newPoller(t, s, hearing(nil), reconcile.Config{}), "k", reconcile.Report{Completed: 1}) // the secret is back
	})
}

// TestExternalEventsOfAnotherScope is B6: a report for one scope has no effect on another, in either way of being read.
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
				// Nor does it keep the right one from being kept, or change its content.
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
