package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// pauseAfter queries once more, and returns how long the pause is until the next time.
func pauseAfter(t *testing.T, store store.Store, poller *reconcile.Poller, key string) time.Duration {
	t.Helper()
	ask(t, poller, key, reconcile.Report{Postponed: 1})
	return time.Until(record(t, store, key).ReconcileAt)
}

func TestPausesGrowToALimit(t *testing.T) {
	for name, c := range map[string]struct {
		config reconcile.Config
		want   []time.Duration
	}{
		"as configured": {
			reconcile.Config{MinBackoff: 10 * time.Second, MaxBackoff: time.Minute},
			[]time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute, time.Minute},
		},
		"by default": {
			reconcile.Config{},
			[]time.Duration{
				10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second,
				320 * time.Second, 640 * time.Second, 15 * time.Minute, 15 * time.Minute,
			},
		},
		"a first pause that is long": {
			reconcile.Config{MinBackoff: time.Hour}, []time.Duration{time.Hour, time.Hour, time.Hour},
		},
		"a first pause longer than the longest": {
			reconcile.Config{MinBackoff: time.Hour, MaxBackoff: time.Minute}, []time.Duration{time.Minute, time.Minute},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New()
				lose(t, store, "k")
				poller := newPoller(t, store, reconcile.Rule{Resolver: &oracle{}}, c.config)
				for i, most := range c.want {
					if got := pauseAfter(t, store, poller, "k"); got < most/2 || got > most {
						t.Errorf("pause %d is %s, want %s to %s", i+1, got, most/2, most)
					}
				}
			})
		})
	}
}

// TestPausesDiffer: records that were lost together do not stay together.
func TestPausesDiffer(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		poller := newPoller(t, store, reconcile.Rule{Resolver: &oracle{}}, reconcile.Config{MinBackoff: time.Minute})
		seen := make(map[time.Duration]bool)
		shortest, longest := time.Hour, time.Duration(0)
		for i := range 200 {
			key := fmt.Sprint("k", i)
			lose(t, store, key)
			pause := pauseAfter(t, store, poller, key)
			seen[pause] = true
			shortest, longest = min(shortest, pause), max(longest, pause)
		}
		if len(seen) < 190 || shortest > 35*time.Second || longest < 55*time.Second {
			t.Errorf("200 pauses have %d lengths, from %s to %s: want them spread over 30 s to 60 s", len(seen), shortest,
				longest)
		}
	})
}

// TestLimit: with the last attempt a record becomes a dead letter, about which no resolver is queried until a person
// requeues it.
func TestLimit(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		claim := lose(t, s, "k")
		var told journal
		var log strings.Builder
		bank := &oracle{}
		poller := newPoller(t, s, reconcile.Rule{Resolver: bank}, reconcile.Config{
			MaxAttempts: 3, MaxBackoff: time.Minute, Observer: &told, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		threeTries := func() {
			t.Helper()
			for _, want := range []reconcile.Report{{Postponed: 1}, {Postponed: 1}, {Postponed: 1, DeadLetters: 1}} {
				run(t, poller, want)
				run(t, poller, reconcile.Report{}) // it is not due before its pause is over
				time.Sleep(time.Minute)
			}
		}
		threeTries()
		if rec := record(t, s, "k"); !rec.DeadLetter || rec.State != store.StateUnknown ||
			rec.ReconcileError != "the bank is still at it" {
			t.Errorf("after the limit the record is %s, dead letter %t, because %q", rec.State, rec.DeadLetter,
				rec.ReconcileError)
		}
		if got := strings.Count(log.String(), "a person has to settle"); got != 1 ||
			strings.Contains(log.String(), "tenant") {
			t.Errorf("the log tells of a dead letter %d times, want once and without its key: %s", got, log.String())
		}
		for range 10 {
			time.Sleep(time.Hour)
			run(t, poller, reconcile.Report{})
		}
		bank.wantAsked(t, 3)

		operator, err := reconcile.NewOperator(guard, s)
		must(t, err)
		must(t, operator.RetryNow(t.Context(), zoe, claim))
		threeTries()
		bank.wantAsked(t, 6)
		if got, want := told.outcomes(), "postponed, postponed, dead letter, postponed, postponed, dead letter"; got != want {
			t.Errorf("the observer was told %s, want %s", got, want)
		}
	})
}

// TestNoRule: an operation without a resolver does not stay unknown without a limit.
func TestNoRule(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		loseAt(t, store, "POST /refunds", "k")
		var told journal
		poller := newPoller(t, store, reconcile.Rule{Resolver: &oracle{}},
			reconcile.Config{MaxAttempts: 2, MaxBackoff: time.Minute, Observer: &told})
		run(t, poller, reconcile.Report{Postponed: 1})
		time.Sleep(time.Minute)
		run(t, poller, reconcile.Report{Postponed: 1, DeadLetters: 1})
		if rec := record(t, store, "k"); !rec.DeadLetter || !strings.Contains(rec.ReconcileError,
			`no rule for the operation "POST /refunds"`) {
			t.Errorf("dead letter %t because %q", rec.DeadLetter, rec.ReconcileError)
		}
		if len(told.events) != 2 || told.events[1].Err == nil {
			t.Errorf("the observer was told %+v, want an error", told.events)
		}
	})
}

func TestDefaultRule(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "own")
		loseAt(t, s, "POST /refunds", "other")
		own, others := &oracle{}, always(reconcile.Completed(paid, ""))
		run(t, newPoller(t, s, reconcile.Rule{}, reconcile.Config{
			Rules: map[string]reconcile.Rule{transfers: {Resolver: own}}, DefaultRule: &reconcile.Rule{Resolver: others},
		}), reconcile.Report{Completed: 1, Postponed: 1})
		own.wantAsked(t, 1)
		others.wantAsked(t, 1)
		wantState(t, s, "own", store.StateUnknown)
		wantState(t, s, "other", store.StateCompleted)
	})
}

// TestRun: it queries immediately and then repeatedly, logs what fails, continues, and ends with its context.
func TestRun(t *testing.T) {
	inTime(t, func(t *testing.T) {
		var down atomic.Bool
		store := &faulty{Store: memory.New(), before: func(call string) error {
			if down.Load() && call == "list" {
				return errDown
			}
			return nil
		}}
		lose(t, store, "k")
		bank := &oracle{}
		var log strings.Builder
		poller := newPoller(t, store, reconcile.Rule{Resolver: bank}, reconcile.Config{
			Interval: 10 * time.Second, MinBackoff: time.Second, MaxBackoff: time.Second,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { poller.Run(ctx); close(ended) }()
		synctest.Wait()
		bank.wantAsked(t, 1)
		time.Sleep(15 * time.Second) // an interval varies by half
		synctest.Wait()
		if n := len(bank.asked); n < 2 || n > 4 {
			t.Errorf("in 15 s with an interval of 10 s it was asked %d times", n)
		}
		before := len(bank.asked)
		down.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		bank.wantAsked(t, before)
		if !strings.Contains(log.String(), "pulled the plug") {
			t.Errorf("the log does not tell of the failure: %s", log.String())
		}
		down.Store(false)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if len(bank.asked) == before {
			t.Error("it did not go on after a failure")
		}
		cancel()
		<-ended
	})
}

// TestFailuresOfManyAreOne: a store that is away does not fill the log with one line for each record.
func TestFailuresOfManyAreOne(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := &faulty{Store: memory.New()}
		for i := range 50 {
			lose(t, s, fmt.Sprint("k", i))
		}
		s.before = func(call string) error {
			if call == "get" {
				return errDown
			}
			return nil
		}
		_, err := newPoller(t, s, reconcile.Rule{Resolver: &oracle{}}, reconcile.Config{}).RunOnce(t.Context())
		if !errors.Is(err, store.ErrUnavailable) || strings.Count(err.Error(), "plug") != 1 ||
			!strings.Contains(err.Error(), "50 records") {
			t.Errorf("got %v, want one failure that stands for 50", err)
		}
	})
}
