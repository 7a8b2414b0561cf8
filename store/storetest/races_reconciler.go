package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/onceward/onceward/store"
)

// testReconcilerRaces lets late owners, resolvers and operators settle one unknown record at the same moment.
func testReconcilerRaces(t *testing.T, h Harness) {
	h.test(t, "late owner against another answer", raceOwnerAndAnswer)
	h.test(t, "late owner against the same answer", func(e *env) {
		for _, id := range ids(rounds * 2) {
			c := e.lose(id)
			var owner, resolver error
			pair(func() { _, owner = e.Store.Complete(e.ctx, c, answer("same")) },
				func() { resolver = e.resolver().ResolveCompleted(e.ctx, c, answer("same")) })
			if owner != nil || resolver != nil {
				e.Errorf("S6: the same settlement twice: owner got %v, resolver got %v, want both to succeed", owner, resolver)
			}
		}
	})
	h.test(t, "late owner against not executed", raceOwnerAndNotExecuted)
	h.test(t, "two resolvers, two answers", func(e *env) {
		for _, id := range ids(rounds) {
			c := e.lose(id)
			errs := make([]error, crowd)
			together(crowd, func(i int) { errs[i] = e.resolver().ResolveCompleted(e.ctx, c, answer(fmt.Sprint(i))) })
			accepted := 0
			for _, err := range errs {
				if err == nil {
					accepted++
				} else {
					e.wantFenced(err, "S6: a second resolution")
				}
			}
			if accepted != 1 {
				e.Errorf("S6: %d different resolutions were accepted, want 1", accepted)
			}
		}
	})
	h.test(t, "postpone against resolve", func(e *env) {
		for _, id := range ids(rounds * 2) {
			c := e.lose(id)
			var resolved, postponed error
			pair(func() { resolved = e.resolver().ResolveCompleted(e.ctx, c, answer("found")) },
				func() { postponed = e.resolver().Postpone(e.ctx, c, notYet(0, 1)) })
			e.must(resolved)
			if postponed != nil && !errors.Is(postponed, store.ErrFenced) {
				e.Errorf("S6: postpone got %v, want nil or ErrFenced", postponed)
			}
			if rec := e.get(id); rec.State != store.StateCompleted || rec.DeadLetter {
				e.Errorf("S6: a resolved record is %s, dead letter %t", describe(rec), rec.DeadLetter)
			}
		}
	})
	h.test(t, "not executed against retries", raceNotExecutedAndRetries)
	h.test(t, "one try, many nodes", raceForTheTry)
	h.test(t, "a resolved step against retries", raceResolvedStepAndRetries)
}

// resolver returns the store as a reconciler.
func (e *env) resolver() store.Reconciler { return e.Store.(store.Reconciler) }

func raceOwnerAndAnswer(e *env) {
	for _, id := range ids(rounds * 2) {
		c := e.lose(id)
		var owner, resolver error
		pair(func() { _, owner = e.Store.Complete(e.ctx, c, answer("owner")) },
			func() { resolver = e.resolver().ResolveCompleted(e.ctx, c, answer("resolver")) })
		want, loser := "owner", resolver
		if resolver == nil {
			want, loser = "resolver", owner
		}
		if (owner == nil) == (resolver == nil) {
			e.Errorf("S6: owner got %v and resolver got %v, want one of them to win", owner, resolver)
		}
		if got := string(e.get(id).Response.Body); got != want {
			e.Errorf("S6: the %s won, but the answer of the %s is stored", want, got)
		}
		var fenced *store.FencedError
		if !errors.As(loser, &fenced) || fenced.Response == nil || string(fenced.Response.Body) != want {
			e.Errorf("S6: whoever lost must be told the stored answer %q, got %v", want, loser)
		}
	}
}

func raceOwnerAndNotExecuted(e *env) {
	for _, id := range ids(rounds * 2) {
		c := e.lose(id)
		var owner, resolver error
		pair(func() { _, owner = e.Store.Complete(e.ctx, c, answer("owner")) },
			func() { resolver = e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived") })
		want, loser := store.StateCompleted, resolver
		if resolver == nil {
			want, loser = store.StateRetryable, owner
		}
		e.wantFenced(loser, "S6: late owner and resolver cannot both be right: the loser")
		e.wantState(id, want, "S6: after a late owner raced a resolver")
	}
}

// raceNotExecutedAndRetries checks that a resolution frees the operation for one retry, and for none before it.
func raceNotExecutedAndRetries(e *env) {
	for _, id := range ids(rounds) {
		c := e.lose(id)
		verdicts := make([]store.Verdict, crowd)
		errs := make([]error, crowd)
		together(crowd, func(i int) {
			if i == 0 {
				errs[i] = e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived")
				return
			}
			verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(id))
		})
		e.must(errors.Join(errs...))
		verdicts = append(verdicts[1:], e.reserve(request(id)))
		e.onlyWinner(verdicts)
		for _, v := range verdicts {
			if v.Decision == store.DecisionReplay || v.Decision == store.DecisionMismatch {
				e.Errorf("section 4: a retry of a record that was not executed got %s", v.Decision)
			}
		}
	}
}
