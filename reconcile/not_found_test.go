package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

const arrival = 10 * time.Minute

// owner is what a platform knows about the process that made an attempt.
type owner struct {
	gone bool
	err  error
}

func (o *owner) isGone(context.Context, *store.Record) (bool, error) { return o.gone, o.err }

// TestNotFound goes through the rules of B3: when a machine may conclude that nothing was done (scenario 31).
func TestNotFound(t *testing.T) {
	var (
		gone    = (&owner{gone: true}).isGone
		there   = (&owner{}).isGone
		unclear = (&owner{gone: true, err: errors.New("the platform does not answer")}).isGone
		bursts  = func(context.Context, *store.Record) (bool, error) { panic("no platform") }
	)
	for name, c := range map[string]struct {
		rule reconcile.Rule
		// at once, and when the time to arrive is over
		first, later bool
		reason       string
	}{
		"nothing is known":             {reconcile.Rule{}, false, false, "proves nothing"},
		"time alone":                   {reconcile.Rule{Arrival: arrival}, false, false, "proves nothing"},
		"an owner that is gone, alone": {reconcile.Rule{OwnerGone: gone}, false, false, "proves nothing"},
		"an owner that is there": {
			reconcile.Rule{Arrival: arrival, OwnerGone: there},
			false, false,
			"owner may still be there",
		},
		"an owner nobody knows about": {
			reconcile.Rule{Arrival: arrival, OwnerGone: unclear},
			false, false,
			"does not answer",
		},
		"a platform that panics": {
			reconcile.Rule{Arrival: arrival, OwnerGone: bursts},
			false, false,
			"panic: no platform",
		},
		"time, and an owner gone": {reconcile.Rule{Arrival: arrival, OwnerGone: gone}, false, true, "on its way"},
		"dedup":                   {reconcile.Rule{Deduplicates: true}, true, true, "recognise its downstream key"},
		"dedup, and time":         {reconcile.Rule{Deduplicates: true, Arrival: arrival}, false, true, "on its way"},
		"dedup, an owner still there": {
			reconcile.Rule{Deduplicates: true, Arrival: arrival, OwnerGone: there},
			false,
			true, "on its way",
		},
		"dedup, nobody knows": {
			reconcile.Rule{Deduplicates: true, Arrival: arrival, OwnerGone: unclear},
			false,
			true, "on its way",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				lose(t, s, "k")
				c.rule.Resolver = always(reconcile.NotFound())
				poller := newPoller(t, s, c.rule, reconcile.Config{})
				conclude := map[bool]reconcile.Report{false: {Postponed: 1}, true: {NotExecuted: 1}}
				ask(t, poller, "k", conclude[c.first])
				if rec := record(t, s, "k"); !strings.Contains(rec.LastError+rec.ReconcileError, c.reason) {
					t.Errorf("the reasons are %q and %q, want %q", rec.LastError, rec.ReconcileError, c.reason)
				}
				if c.first {
					wantState(t, s, "k", store.StateRetryable)
					return
				}
				time.Sleep(arrival - time.Second)
				ask(t, poller, "k", reconcile.Report{Postponed: 1})
				time.Sleep(time.Second)
				ask(t, poller, "k", conclude[c.later])
				want := map[bool]store.State{false: store.StateUnknown, true: store.StateRetryable}[c.later]
				wantState(t, s, "k", want)
				time.Sleep(100 * arrival)
				if !c.later {
					ask(t, poller, "k", reconcile.Report{Postponed: 1})
				}
			})
		})
	}
}

// TestArrivalCountsFromTheOwnersEnd: an owner that was there all the time may have sent its request just before it
// went.
func TestArrivalCountsFromTheOwnersEnd(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		lose(t, store, "k")
		paused := &owner{}
		poller := newPoller(t, store, reconcile.Rule{
			Resolver: always(reconcile.NotFound()), Arrival: arrival,
			OwnerGone: paused.isGone,
		}, reconcile.Config{})
		notYet := func() {
			t.Helper()
			ask(t, poller, "k", reconcile.Report{Postponed: 1})
		}
		notYet()
		time.Sleep(10 * arrival) // it was only paused, wakes up, sends its request, and dies
		notYet()
		paused.gone = true
		notYet()
		time.Sleep(arrival / 2)
		notYet()
		paused.gone = false // what was said of it was wrong: all counts from the beginning
		notYet()
		paused.gone = true
		time.Sleep(arrival)
		notYet()
		paused.err = errDown // which does not mean that it is back
		time.Sleep(arrival / 2)
		notYet()
		paused.err = nil
		time.Sleep(arrival / 2)
		ask(t, poller, "k", reconcile.Report{NotExecuted: 1})
	})
}

// TestArrivalCountsToTheQuestion: an answer that took long may be about the time before.
func TestArrivalCountsToTheQuestion(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		poller := newPoller(t, s, reconcile.Rule{
			Resolver: &oracle{answer: func(context.Context, *store.Record) (reconcile.Answer, error) {
				time.Sleep(arrival)
				return reconcile.NotFound(), nil
			}},
			Arrival: arrival, OwnerGone: (&owner{gone: true}).isGone,
		}, reconcile.Config{Timeout: time.Hour})
		ask(t, poller, "k", reconcile.Report{Postponed: 1})
		ask(t, poller, "k", reconcile.Report{Postponed: 1}) // asked at once after the owner was found to be gone
		ask(t, poller, "k", reconcile.Report{NotExecuted: 1})
	})
}

// TestArrivalCountsFromTheBeginning: for another attempt, and in a process that was started again.
func TestArrivalCountsFromTheBeginning(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		claim := lose(t, store, "k")
		rule := reconcile.Rule{
			Resolver: always(reconcile.NotFound()), Arrival: arrival,
			OwnerGone: (&owner{gone: true}).isGone,
		}
		first := newPoller(t, store, rule, reconcile.Config{})
		ask(t, first, "k", reconcile.Report{Postponed: 1})
		time.Sleep(arrival)

		restarted := newPoller(t, store, rule, reconcile.Config{})
		ask(t, restarted, "k", reconcile.Report{Postponed: 1})
		time.Sleep(arrival - time.Second)
		ask(t, restarted, "k", reconcile.Report{Postponed: 1})

		must(t, store.ResolveNotExecuted(t.Context(), claim, "a person knew"))
		lose(t, store, "k")
		ask(t, first, "k", reconcile.Report{Postponed: 1})
		time.Sleep(arrival)
		ask(t, first, "k", reconcile.Report{NotExecuted: 1})
	})
}

// TestGoneOwnersAreForgotten: an attempt that is not queried for days is not remembered, and then counts from the
// beginning. A long pause between two attempts is not such a time.
func TestGoneOwnersAreForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		longest time.Duration
		want    reconcile.Report
	}{
		"usual pauses": {0, reconcile.Report{Postponed: 1}}, "pauses of days": {
			72 * time.Hour,
			reconcile.Report{NotExecuted: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				lose(t, store, "k")
				poller := newPoller(t, store, reconcile.Rule{
					Resolver: always(reconcile.NotFound()), Arrival: arrival, OwnerGone: (&owner{gone: true}).isGone,
				}, reconcile.Config{MaxAttempts: 1, MaxBackoff: c.longest})
				ask(t, poller, "k", reconcile.Report{Postponed: 1, DeadLetters: 1})
				time.Sleep(50 * time.Hour)
				run(t, poller, reconcile.Report{})
				if c.want.Postponed > 0 {
					c.want.DeadLetters = 1
				}
				ask(t, poller, "k", c.want)
			})
		})
	}
}
