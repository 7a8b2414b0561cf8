package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store/memory"
)

// about is a notice of the bank's about the transfer of a key. When it happened is a number of seconds.
func about(key, event string, second int64, word string) onceward.Notice {
	return onceward.Notice{
		Source: "bank", EventID: event, Subject: onceward.DownstreamKey(idOf(key), "transfer"), At: time.Unix(second, 0), Body: []byte(word),
	}
}

func keep(t *testing.T, store onceward.NoticeKeeper, notices ...onceward.Notice) {
	t.Helper()
	for _, n := range notices {
		_, err := store.AddNotice(t.Context(), n)
		must(t, err)
	}
}

// lastWord believes the last notice.
func lastWord(_ context.Context, _ *onceward.Record, notices []onceward.Notice) (reconcile.Answer, error) {
	switch last := notices[len(notices)-1]; string(last.Body) {
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

// hearing is the rule for a bank that tells by itself, and can be asked too if there is a resolver.
func hearing(asked reconcile.Resolver) reconcile.Rule {
	return reconcile.Rule{Resolver: asked, Source: "bank", Steps: []string{"reserve", "transfer"}, Interpret: lastWord}
}

// TestNoticesComeFirst: the resolver is asked only about what the notices do not tell.
func TestNoticesComeFirst(t *testing.T) {
	other := about("k", "e9", 9, "paid")
	other.Source = "another bank"
	for name, c := range map[string]struct {
		notices []onceward.Notice
		asked   int
		want    reconcile.Report
	}{
		"none":              {nil, 1, reconcile.Report{NotExecuted: 1}},
		"done":              {[]onceward.Notice{about("k", "e1", 1, "paid")}, 0, reconcile.Report{Completed: 1}},
		"not done":          {[]onceward.Notice{about("k", "e1", 1, "cancelled")}, 0, reconcile.Report{NotExecuted: 1}},
		"no longer known":   {[]onceward.Notice{about("k", "e1", 1, "lost")}, 0, reconcile.Report{Postponed: 1}},
		"still at it":       {[]onceward.Notice{about("k", "e1", 1, "processing")}, 1, reconcile.Report{NotExecuted: 1}},
		"out of order":      {[]onceward.Notice{about("k", "e2", 2, "paid"), about("k", "e1", 1, "processing")}, 0, reconcile.Report{Completed: 1}},
		"twice":             {[]onceward.Notice{about("k", "e1", 1, "paid"), about("k", "e1", 1, "paid")}, 0, reconcile.Report{Completed: 1}},
		"unreadable":        {[]onceward.Notice{about("k", "e1", 1, "garbled")}, 1, reconcile.Report{NotExecuted: 1}},
		"poisonous":         {[]onceward.Notice{about("k", "e1", 1, "poison")}, 1, reconcile.Report{NotExecuted: 1}},
		"another's":         {[]onceward.Notice{about("j", "e1", 1, "paid")}, 1, reconcile.Report{NotExecuted: 1}},
		"of another source": {[]onceward.Notice{other}, 1, reconcile.Report{NotExecuted: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				keep(t, store, c.notices...)
				lose(t, store, "k")
				bank := always(reconcile.NotExecuted("the bank says so"))
				run(t, newPoller(t, store, hearing(bank), reconcile.Config{}), c.want)
				bank.wantAsked(t, c.asked)
			})
		})
	}
}

// TestUnreadableNoticeIsToldOf: if the resolver knows nothing either, the record says what is wrong with the notice.
func TestUnreadableNoticeIsToldOf(t *testing.T) {
	for name, asked := range map[string]reconcile.Resolver{"with a resolver": &oracle{}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				keep(t, store, about("k", "e1", 1, "garbled"))
				lose(t, store, "k")
				ask(t, newPoller(t, store, hearing(asked), reconcile.Config{}), "k", reconcile.Report{Postponed: 1})
				if rec := record(t, store, "k"); rec.ReconcileError != "this is no JSON" {
					t.Errorf("the reason is %q", rec.ReconcileError)
				}
			})
		})
	}
}

// TestNoticesCannotBeRead: nobody is asked before they were.
func TestNoticesCannotBeRead(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := &faulty{Store: memory.New()}
		lose(t, store, "k")
		store.before = func(call string) error {
			if call == "notices" {
				return errDown
			}
			return nil
		}
		bank := always(reconcile.NotExecuted("the bank says so"))
		ask(t, newPoller(t, store, hearing(bank), reconcile.Config{}), "k", reconcile.Report{Postponed: 1})
		bank.wantAsked(t, 0)
	})
}

func apply(t *testing.T, store onceward.NoticeKeeper, poller *reconcile.Poller, n onceward.Notice) {
	t.Helper()
	keep(t, store, n)
	must(t, poller.Apply(t.Context(), n))
}

func TestApply(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		bank := &oracle{}
		poller := newPoller(t, store, hearing(bank), reconcile.Config{})
		lose(t, store, "k")
		lose(t, store, "other")
		loseAt(t, store, "POST /refunds", "no rule")
		foreign := about("k", "e1", 1, "paid")
		foreign.Source = "another bank"
		for _, n := range []onceward.Notice{
			foreign, about("no rule", "e2", 1, "paid"), about("nobody", "e3", 1, "paid"),
			{Source: "bank", EventID: "e4", Subject: onceward.DownstreamKey(idOf("k"), "another step"), Body: []byte("paid")},
			{Source: "bank", EventID: "e5", Body: []byte("paid")},
		} {
			apply(t, store, poller, n)
		}
		// A notice that was not kept first is hearsay.
		must(t, poller.Apply(t.Context(), about("k", "never kept", 1, "paid")))
		for _, key := range []string{"k", "other", "no rule"} {
			wantUntouched(t, store, key)
		}
		for range 2 {
			apply(t, store, poller, about("k", "e6", 2, "paid"))
			wantState(t, store, "k", onceward.StateCompleted)
			wantUntouched(t, store, "other")
		}
		// What another source says is no reason to look.
		keep(t, store, about("other", "e7", 1, "paid"))
		foreign.Subject = about("other", "", 0, "").Subject
		must(t, poller.Apply(t.Context(), foreign))
		wantUntouched(t, store, "other")
		bank.wantAsked(t, 0)
	})
}

// TestApplyTooLate: the record was settled or removed while it was looked for, or while the notices were read.
func TestApplyTooLate(t *testing.T) {
	for _, during := range []string{"get", "notices"} {
		for name, meanwhile := range map[string]func(ctx context.Context, d *reconcile.Desk, c onceward.Claim) error{
			"settled": func(ctx context.Context, d *reconcile.Desk, c onceward.Claim) error {
				return d.ResolveNotExecuted(ctx, zoe, c)
			},
			"removed": func(ctx context.Context, d *reconcile.Desk, c onceward.Claim) error {
				return errors.Join(d.Bust(ctx, zoe, c.ID, true), d.Bust(ctx, zoe, c.ID, false))
			},
		} {
			t.Run(name+" during "+during, func(t *testing.T) {
				inTime(t, func(t *testing.T) {
					store := &faulty{Store: memory.New()}
					claim := lose(t, store, "k")
					keep(t, store, about("k", "e1", 1, "paid"))
					store.before = func(call string) error {
						if call == during {
							must(t, meanwhile(t.Context(), newDesk(t, store.Store), claim))
						}
						return nil
					}
					must(t, newPoller(t, store, hearing(nil), reconcile.Config{}).Apply(t.Context(), about("k", "e1", 1, "paid")))
					if rec, _ := store.Store.Get(t.Context(), claim.ID); rec.State == onceward.StateCompleted {
						t.Error("the notice has settled what was settled")
					}
				})
			})
		}
	}
}

// TestApplyWithoutNews: a notice that tells no end, sent again and again, asks nobody and uses up no tries.
func TestApplyWithoutNews(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		bank := &oracle{}
		poller := newPoller(t, store, hearing(bank), reconcile.Config{Limit: 3})
		lose(t, store, "k")
		for i := range 10 {
			apply(t, store, poller, about("k", "e1", 1, "processing"))
			apply(t, store, poller, about("k", fmt.Sprint("another ", i), 1, "processing"))
		}
		keep(t, store, about("k", "e2", 2, "garbled"))
		if err := poller.Apply(t.Context(), about("k", "e2", 2, "garbled")); err == nil {
			t.Error("a notice that cannot be interpreted is no error")
		}
		wantUntouched(t, store, "k")
		bank.wantAsked(t, 0)
		// What happened before the last one, and came after it, changes nothing; what happened after it counts.
		apply(t, store, poller, about("k", "e4", 4, "processing"))
		apply(t, store, poller, about("k", "e3", 3, "cancelled"))
		wantUntouched(t, store, "k")
		apply(t, store, poller, about("k", "e5", 5, "paid"))
		wantState(t, store, "k", onceward.StateCompleted)
	})
}

// TestApplyTooEarly: a notice about what is in progress, or not recorded at all, does nothing and stays.
func TestApplyTooEarly(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		bank := &oracle{}
		poller := newPoller(t, store, hearing(bank), reconcile.Config{})
		apply(t, store, poller, about("k", "e1", 1, "processing"))
		claim := start(t, store, transfers, "k")
		apply(t, store, poller, about("k", "e2", 2, "paid"))
		if rec := record(t, store, "k"); rec.State != onceward.StateInProgress || rec.Attempt != claim.Attempt {
			t.Fatalf("the record is %s", rec.State)
		}
		must(t, store.Abandon(t.Context(), claim, "no answer came"))
		time.Sleep(time.Millisecond)
		run(t, poller, reconcile.Report{Completed: 1})
		bank.wantAsked(t, 0)
	})
}

// TestApplyFails: what the store does not do now it is told of, and the notice is there for the poller.
func TestApplyFails(t *testing.T) {
	for _, away := range []string{"list", "get", "notices", "audit", "resolve"} {
		t.Run(away, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := &faulty{Store: memory.New()}
				lose(t, store, "k")
				keep(t, store, about("k", "e1", 1, "paid"))
				poller := newPoller(t, store, hearing(nil), reconcile.Config{})
				store.before = func(call string) error {
					if call == away {
						return errDown
					}
					return nil
				}
				if err := poller.Apply(t.Context(), about("k", "e1", 1, "paid")); !errors.Is(err, onceward.ErrUnavailable) {
					t.Errorf("got %v, want the store's failure", err)
				}
				wantUntouched(t, store.Store, "k")
				store.before = nil
				run(t, poller, reconcile.Report{Completed: 1})
			})
		})
	}
}

// TestNoticeAboutADeadLetter: it counts when it is applied, and is found by the poller if that failed.
func TestNoticeAboutADeadLetter(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		bank := &oracle{}
		poller := newPoller(t, store, hearing(bank), reconcile.Config{Limit: 1, LongestPause: 15 * time.Minute})
		lose(t, store, "applied")
		lose(t, store, "kept")
		lose(t, store, "not heard of")
		run(t, poller, reconcile.Report{Postponed: 3, DeadLetters: 3})
		bank.wantAsked(t, 3)
		apply(t, store, poller, about("applied", "e1", 1, "paid"))
		wantState(t, store, "applied", onceward.StateCompleted)
		keep(t, store, about("kept", "e2", 1, "paid"))
		time.Sleep(time.Minute)
		run(t, poller, reconcile.Report{}) // to look at them each time would cost too much
		time.Sleep(15 * time.Minute)
		run(t, poller, reconcile.Report{Completed: 1})
		wantState(t, store, "kept", onceward.StateCompleted)
		bank.wantAsked(t, 3)
	})
}

// TestNoticesOnly: without a resolver a record waits for its notice, and in the end for a person.
func TestNoticesOnly(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		poller := newPoller(t, store, hearing(nil), reconcile.Config{Limit: 2})
		lose(t, store, "k")
		ask(t, poller, "k", reconcile.Report{Postponed: 1})
		ask(t, poller, "k", reconcile.Report{Postponed: 1, DeadLetters: 1})
		if rec := record(t, store, "k"); rec.ReconcileError != "no notice has come" {
			t.Errorf("the reason is %q", rec.ReconcileError)
		}
	})
}
