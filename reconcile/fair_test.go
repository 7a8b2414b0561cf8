package reconcile_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/reconcile"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
)

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

// TestNoTryWithoutRoom: a try is claimed only when there is room to make it. What waits stays due for other nodes.
func TestNoTryWithoutRoom(t *testing.T) {
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
			t.Errorf("%d tries are claimed, want the 3 that one scope has room for", claimed)
		}
		stop()
	})
}

// TestAResolverThatNeverReturns: one that ignores its context is told of and counted. It takes a place of its
// operation, but no run waits for it, the others go on, and what it says in the end counts if it is not too late.
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
