package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

// TestConcurrencyIsBounded: one scope gets half of what its operation gets.
func TestConcurrencyIsBounded(t *testing.T) {
	for _, c := range []struct{ total, perOperation, want int }{
		{0, 0, 4}, {1, 0, 1}, {6, 6, 3}, {4, 0, 1}, {3, 12, 2},
	} {
		t.Run(fmt.Sprint(c.total, " ", c.perOperation), func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := memory.New()
				const records = 12
				for i := range records {
					lose(t, s, fmt.Sprint("k", i))
				}
				var mu sync.Mutex
				now, most := 0, 0
				count := func(by int) {
					mu.Lock()
					defer mu.Unlock()
					now += by
					most = max(most, now)
				}
				poller := newPoller(t, s, saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
					count(1)
					defer count(-1)
					time.Sleep(time.Second)
					return reconcile.Completed(paid, ""), nil
				}), reconcile.Config{Concurrency: c.total, PerOperation: c.perOperation})
				begin := time.Now()
				run(t, poller, reconcile.Report{Completed: records})
				if took := time.Since(begin); most != c.want || took != time.Duration(records/c.want)*time.Second {
					t.Errorf("at most %d were asked after at one time, want %d, and all took %s", most, c.want, took)
				}
			})
		})
	}
}

// TestMoreThanAPage: records beyond one page of the store are processed too.
func TestMoreThanAPage(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		const records = store.MaxPage + 100
		for i := range records {
			lose(t, s, fmt.Sprintf("k%04d", i))
		}
		last := fmt.Sprintf("k%04d", records-1)
		bank := &oracle{}
		poller := newPoller(t, s, hearing(bank), reconcile.Config{MaxAttempts: 1})
		apply(t, s, poller, about(last, "e1", 1, "paid"))
		wantState(t, s, last, store.StateCompleted)
		run(t, poller, reconcile.Report{Postponed: records - 1, DeadLetters: records - 1})
		bank.wantAsked(t, records-1)

		operator, err := reconcile.NewOperator(guard, s)
		must(t, err)
		seen := make(map[string]bool)
		var after store.ID
		for {
			letters, err := operator.DeadLetters(t.Context(), after, 300)
			must(t, err)
			for _, rec := range letters {
				if seen[rec.Key] {
					t.Fatalf("%s is on two pages", rec.Key)
				}
				seen[rec.Key], after = true, rec.ID
			}
			if len(letters) < 300 {
				break
			}
		}
		if len(seen) != records-1 {
			t.Errorf("there are %d dead letters on all pages, want %d", len(seen), records-1)
		}
		found, err := operator.Find(t.Context(), reconcile.Query{Subject: "ch_1"})
		if err != nil || len(found) != 1 || found[0].Key != last {
			t.Errorf("on the second page was found %v, %v", found, err)
		}
	})
}

// TestAnotherNodeWasFaster: what another node has postponed while this one was busy is not asked after once more.
func TestAnotherNodeWasFaster(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "a")
		lose(t, s, "b")
		theirs := &oracle{}
		other := newPoller(t, s, reconcile.Rule{Resolver: theirs}, reconcile.Config{MinBackoff: time.Hour})
		ours := &oracle{answer: func(context.Context, *store.Record) (reconcile.Answer, error) {
			ask(t, other, "b", reconcile.Report{Postponed: 1})
			return reconcile.StillUnknown("?"), nil
		}}
		run(t, newPoller(t, s, reconcile.Rule{Resolver: ours}, reconcile.Config{Concurrency: 1}),
			reconcile.Report{Postponed: 1})
		ours.wantAsked(t, 1)
		theirs.wantAsked(t, 1)
		if rec := record(t, s, "b"); rec.ReconcileCount != 1 {
			t.Errorf("b was tried %d times, want once", rec.ReconcileCount)
		}
	})
}

// TestClocksApart: the store's clock decides when a record is due (S3). A node whose own clock is slow does not wait,
// and one whose clock is fast does not query early.
func TestClocksApart(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"the node is behind": time.Hour, "the node is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				store := memory.New(memory.WithClock(func() time.Time { return time.Now().Add(ahead) }))
				lose(t, store, "k")
				bank := &oracle{}
				poller := newPoller(t, store, reconcile.Rule{Resolver: bank}, reconcile.Config{MinBackoff: time.Minute})
				run(t, poller, reconcile.Report{Postponed: 1})
				run(t, poller, reconcile.Report{}) // the pause is half a minute at least
				time.Sleep(time.Minute)
				run(t, poller, reconcile.Report{Postponed: 1})
				bank.wantAsked(t, 2)
			})
		})
	}
}

// TestNodesTogether: of several nodes that look at the same moment one asks (B6).
func TestNodesTogether(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		slow := &oracle{answer: func(context.Context, *store.Record) (reconcile.Answer, error) {
			time.Sleep(time.Second)
			return reconcile.Completed(paid, "ch_1"), nil
		}}
		var nodes sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			poller := newPoller(t, s, reconcile.Rule{Resolver: slow}, reconcile.Config{})
			nodes.Go(func() { _, errs[i] = poller.RunOnce(t.Context()) })
		}
		nodes.Wait()
		must(t, errors.Join(errs...))
		slow.wantAsked(t, 1)
		wantState(t, s, "k", store.StateCompleted)
	})
}

// TestContextEnds in the middle: what was not asked after properly is due as before, and no try is counted.
func TestContextEnds(t *testing.T) {
	for name, c := range map[string]struct {
		answer reconcile.Answer
		err    error
	}{
		"an error": {reconcile.Answer{}, context.Canceled}, "nothing": {reconcile.StillUnknown("?"), nil},
		"an answer": {reconcile.Completed(paid, ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				s := &faulty{Store: memory.New()}
				for _, key := range []string{"a", "b", "c", "d"} {
					lose(t, s, key)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var told journal
				bank := &oracle{answer: func(_ context.Context, rec *store.Record) (reconcile.Answer, error) {
					if rec.Key == "b" {
						cancel()
						return c.answer, c.err
					}
					return reconcile.StillUnknown("the bank is still at it"), nil
				}}
				poller := newPoller(t, s, reconcile.Rule{Resolver: bank}, reconcile.Config{Concurrency: 1, Observer: &told})
				report, err := poller.RunOnce(ctx)
				if !errors.Is(err, context.Canceled) || report != (reconcile.Report{Postponed: 1}) {
					t.Errorf("got %+v, %v", report, err)
				}
				bank.wantAsked(t, 2)
				for _, key := range []string{"b", "c", "d"} {
					wantUntouched(t, s, key)
				}
				if got := told.outcomes(); got != "postponed" {
					t.Errorf("the observer was told %q", got)
				}
			})
		})
	}
}

// TestContextEndsWhileAsking: a resolver that waits is let go with the run, and Run returns.
func TestContextEndsWhileAsking(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		lose(t, s, "k")
		poller := newPoller(t, s, saying(func(ctx context.Context, _ *store.Record) (reconcile.Answer, error) {
			<-ctx.Done()
			return reconcile.Answer{}, ctx.Err()
		}), reconcile.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { poller.Run(ctx); close(ended) }()
		synctest.Wait()
		cancel()
		<-ended
		wantUntouched(t, s, "k")
	})
}

// TestOldIsPurged: external events and the audit have a retention of their own (L7).
func TestOldIsPurged(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		poller := newPoller(t, s, hearing(nil), reconcile.Config{KeepExternalEvents: time.Hour, KeepAudit: 3 * time.Hour})
		kept := func() (events, entries int) {
			t.Helper()
			run(t, poller, reconcile.Report{})
			found, err := s.ExternalEvents(t.Context(), store.ExternalEventFilter{
				Source: "bank", Scope: "tenant", Subjects: []string{about("k", "", 0, "").Subject},
			})
			must(t, err)
			acts, err := s.Audit(t.Context(), idOf("k"))
			must(t, err)
			return len(found), len(acts)
		}
		keep(t, s, about("k", "e1", 1, "paid"))
		must(t, s.AddAudit(t.Context(), store.AuditEntry{ID: idOf("k"), Actor: "zoe"}))
		for _, c := range []struct {
			wait            time.Duration
			events, entries int
		}{{time.Hour, 1, 1}, {time.Second, 0, 1}, {2*time.Hour - time.Second, 0, 1}, {time.Second, 0, 0}} {
			time.Sleep(c.wait)
			if events, entries := kept(); events != c.events || entries != c.entries {
				t.Errorf("%d external events and %d entries are left, want %d and %d", events, entries, c.events, c.entries)
			}
		}
	})
}

// hangs is a resolver that waits for an answer that never comes, until its time is over.
func hangs(ctx context.Context, _ *store.Record) (reconcile.Answer, error) {
	<-ctx.Done()
	return reconcile.Answer{}, ctx.Err()
}

const hanging = "POST /hanging"

// byOperation are rules of which one has a provider that hangs.
func byOperation(asked *oracle) map[string]reconcile.Rule {
	return map[string]reconcile.Rule{hanging: saying(hangs), transfers: {Resolver: asked}}
}

// runs starts a poller, and stops it at the end of the test.
func runs(t *testing.T, poller *reconcile.Poller) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		poller.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-ended
	}
}

// TestOneProviderHangs: a provider that hangs delays its own operation alone, those that are found with it and those
// that come later (B6).
func TestOneProviderHangs(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		const inFront = 60
		for i := range inFront {
			loseAt(t, s, hanging, fmt.Sprint("a", i))
		}
		lose(t, s, "b")
		bank := always(reconcile.Completed(paid, ""))
		poller := newPoller(t, s, reconcile.Rule{}, reconcile.Config{
			Rules: byOperation(bank), Timeout: time.Hour, Interval: time.Second,
		})
		stop := runs(t, poller)
		wantState(t, s, "b", store.StateCompleted) // no time has passed
		for i := range 5 {
			later := fmt.Sprint("later", i)
			lose(t, s, later)
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			wantState(t, s, later, store.StateCompleted)
		}
		stop()
		for i := range inFront {
			wantUntouched(t, s, fmt.Sprint("a", i))
		}
	})
}

// TestOneScopeHangs: a scope whose questions hang, and which has a thousand of them, does not starve the others of its
// operation.
func TestOneScopeHangs(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		for i := range 1000 {
			loseIn(t, s, store.ID{Scope: "crook", Key: fmt.Sprint(i)})
		}
		lose(t, s, "k")
		rule := saying(func(ctx context.Context, rec *store.Record) (reconcile.Answer, error) {
			if rec.Scope == "crook" {
				return hangs(ctx, rec)
			}
			return reconcile.Completed(paid, ""), nil
		})
		stop := runs(t, newPoller(t, s, rule, reconcile.Config{}))
		wantState(t, s, "k", store.StateCompleted)
		stop()
	})
}

// TestNoAttemptWithoutRoom: an attempt is claimed only when there is room to make it. What waits stays due for other
// nodes.
func TestNoAttemptWithoutRoom(t *testing.T) {
	inTime(t, func(t *testing.T) {
		store := memory.New()
		for i := range 20 {
			loseAt(t, store, hanging, fmt.Sprint("k", i))
		}
		poller := newPoller(t, store, reconcile.Rule{}, reconcile.Config{Rules: byOperation(&oracle{}), PerOperation: 6})
		stop := runs(t, poller)
		claimed := 0
		for i := range 20 {
			claimed += record(t, store, fmt.Sprint("k", i)).ReconcileCount
		}
		if claimed != 3 {
			t.Errorf("%d attempts are claimed, want the 3 that one scope has room for", claimed)
		}
		stop()
	})
}

// TestAResolverThatNeverReturns: one that ignores its context is reported and counted. It keeps a place of its
// operation, but no run waits for it, the others continue, and its answer counts in the end if it is not too late.
func TestAResolverThatNeverReturns(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		for i := range 9 {
			loseAt(t, s, hanging, fmt.Sprint("stuck", i))
		}
		lose(t, s, "sound")
		letGo := make(chan struct{})
		rules := byOperation(always(reconcile.Completed(paid, "")))
		rules[hanging] = saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
			<-letGo
			return reconcile.Completed(paid, "ch_1"), nil
		})
		var log bytes.Buffer
		var told journal
		poller := newPoller(t, s, reconcile.Rule{}, reconcile.Config{
			Rules: rules, Timeout: 5 * time.Second, Observer: &told, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		began := time.Now()
		run(t, poller, reconcile.Report{Completed: 1, Hanging: 4})
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the run took %s", took)
		}
		if n := strings.Count(log.String(), "hangs"); n != 4 || strings.Contains(log.String(), "stuck0") {
			t.Errorf("%d are told of in the log: %s", n, log.String())
		}
		if n := strings.Count(told.outcomes(), "hanging"); n != 4 {
			t.Errorf("the observer was told of %d", n)
		}
		run(t, poller, reconcile.Report{Hanging: 4}) // it does not ask again where all places are taken
		if rec := record(t, s, "stuck0"); rec.ReconcileCount != 1 || rec.ReconcileAt.After(time.Now()) {
			t.Errorf("what hangs is at try %d, due at %s; another node should get it", rec.ReconcileCount, rec.ReconcileAt)
		}
		wantUntouched(t, s, "stuck8")

		close(letGo)
		synctest.Wait()
		wantState(t, s, "stuck0", store.StateCompleted)
		run(t, poller, reconcile.Report{Completed: 5})
	})
}

// TestAnObserverThatPanics: it changes nothing, neither of what is settled nor of what hangs.
func TestAnObserverThatPanics(t *testing.T) {
	inTime(t, func(t *testing.T) {
		s := memory.New()
		loseAt(t, s, hanging, "stuck")
		lose(t, s, "sound")
		letGo := make(chan struct{})
		rules := byOperation(always(reconcile.Completed(paid, "")))
		rules[hanging] = saying(func(context.Context, *store.Record) (reconcile.Answer, error) {
			<-letGo
			return reconcile.Completed(paid, "ch_1"), nil
		})
		poller := newPoller(t, s, reconcile.Rule{}, reconcile.Config{
			Rules: rules, Timeout: 5 * time.Second, Logger: quiet,
			Observer: onceward.ObserverFunc(func(context.Context, onceward.ObserverEvent) { panic("a bug") }),
		})
		run(t, poller, reconcile.Report{Completed: 1, Hanging: 1})
		close(letGo)
		synctest.Wait()
		wantState(t, s, "stuck", store.StateCompleted)
	})
}
