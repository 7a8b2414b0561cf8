package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/onceward/onceward/store"
)

// herd is how many records a worker finds in a race.
const herd = 40

// testSweeperRaces makes the sweeper race with owners and other sweepers.
func testSweeperRaces(t *testing.T, h Harness) {
	h.test(t, "sweep, then complete", func(e *env) {
		c := e.own(id("key"), lease(e.brief()))
		lapse(e)
		e.sweep(everything)
		e.wantState(c.ID, store.StateUnknown, "B1: after a sweep")
		e.complete(c, "late")
		e.wantState(c.ID, store.StateCompleted, "section 4: the same attempt, finishing late")
	})
	h.test(t, "complete, then sweep", func(e *env) {
		c := e.own(id("key"), lease(e.brief()))
		lapse(e)
		e.complete(c, "just in time")
		if swept := e.sweep(everything); swept != 0 {
			e.Errorf("S6: the sweeper changed %d settled records", swept)
		}
		e.wantState(c.ID, store.StateCompleted, "S6: a settled record")
	})
	h.test(t, "sweep, then reject", func(e *env) {
		c := e.own(id("key"), lease(e.brief()))
		lapse(e)
		e.sweep(everything)
		e.wantFenced(e.Store.Reject(e.ctx, c), "S6: a reject of what is unknown")
		e.wantState(c.ID, store.StateUnknown, "S6: after a refused reject")
	})
	h.test(t, "reject, then sweep", func(e *env) {
		c := e.own(id("key"), lease(e.brief()))
		lapse(e)
		e.must(e.Store.Reject(e.ctx, c))
		if swept := e.sweep(everything); swept != 0 {
			e.Errorf("E5: the sweeper changed %d rejected records", swept)
		}
		e.wantDecision(request(c.ID, fingerprints(fingerprint("corrected"))), store.DecisionExecute,
			"E5: the corrected request")
	})
	h.test(t, "sweep against complete", raceSweepAndComplete)
	h.test(t, "sweep against extend", raceSweepAndExtend)
	h.test(t, "two sweepers", func(e *env) {
		e.lapsedClaims(herd)
		swept := make([]int, 4)
		errs := make([]error, 4)
		together(4, func(i int) { swept[i], errs[i] = e.sweepAll() })
		e.must(errors.Join(errs...))
		if total := sum(swept); total != herd {
			e.Errorf("B1: sweepers at the same time counted %d records, want each of %d once", total, herd)
		}
	})
}

// lapsedClaims returns claims whose leases are over.
func (e *env) lapsedClaims(n int) []store.Claim {
	e.Helper()
	var claims []store.Claim
	for _, id := range ids(n) {
		claims = append(claims, e.own(id, lease(e.brief())))
	}
	lapse(e)
	return claims
}

// sweepAll sweeps in small batches until nothing is left.
func (e *env) sweepAll() (total int, err error) {
	for {
		swept, err := e.Store.(store.Sweeper).Sweep(e.ctx, 3)
		total += swept
		if swept == 0 || err != nil {
			return total, err
		}
	}
}

func raceSweepAndComplete(e *env) {
	claims := e.lapsedClaims(herd)
	errs := make([]error, herd)
	var swept error
	together(herd+1, func(i int) {
		if i == herd {
			_, swept = e.sweepAll()
			return
		}
		_, errs[i] = e.Store.Complete(e.ctx, claims[i], answer(claims[i].Key))
	})
	e.must(swept)
	for i, c := range claims {
		if errs[i] != nil {
			e.Errorf("section 4: the sweeper must not take an answer from its owner: %v", errs[i])
		}
		if rec := e.get(c.ID); rec.State != store.StateCompleted || string(rec.Response.Body) != c.Key {
			e.Errorf("E7: the answer of %q was lost: the record is %s", c.Key, describe(rec))
		}
	}
}

func raceSweepAndExtend(e *env) {
	claims := e.lapsedClaims(herd)
	errs := make([]error, herd)
	var swept error
	together(herd+1, func(i int) {
		if i == herd {
			_, swept = e.sweepAll()
			return
		}
		errs[i] = e.Store.Extend(e.ctx, claims[i], calm)
	})
	e.must(swept)
	for i, c := range claims {
		want := store.StateUnknown
		if errs[i] == nil {
			want = store.StateInProgress
		}
		if errs[i] != nil && !errors.Is(errs[i], store.ErrFenced) {
			e.Errorf("S6: extend got %v, want nil or ErrFenced", errs[i])
		}
		e.wantState(c.ID, want, fmt.Sprintf("S6: extend never revives unknown; it returned %v", errs[i]))
	}
}

// testReaperRaces makes the reaper race with retries and other reapers.
func testReaperRaces(t *testing.T, h Harness) {
	for _, soft := range []bool{false, true} {
		kind := map[bool]string{false: "hard", true: "soft"}[soft]
		h.test(t, kind+" reap against reserve", func(e *env) {
			for round := range 3 {
				e.raceReapAndReserve(fmt.Sprint("round-", round), soft)
			}
		})
		h.test(t, kind+", two reapers", func(e *env) {
			for _, id := range ids(herd) {
				e.complete(e.own(id, retain(e.brief())), "stored")
			}
			lapse(e)
			reaped := make([]int, 4)
			errs := make([]error, 4)
			together(4, func(i int) {
				reaped[i], errs[i] = e.Store.(store.Reaper).Reap(e.ctx, everything, soft)
			})
			e.must(errors.Join(errs...))
			if total := sum(reaped); total != herd && e.Advance != nil {
				e.Errorf("B2: reapers at the same time counted %d records, want each of %d once", total, herd)
			}
			for _, id := range ids(herd) {
				if state := e.get(id).State; state.Settled() {
					e.Errorf("B2: record %q is still %s after its expiry was reaped", id.Key, state)
				}
			}
		})
	}
}

// raceReapAndReserve recreates expired records while they are being reaped: recreated records stay (S10).
func (e *env) raceReapAndReserve(scope string, soft bool) {
	e.Helper()
	targets := ids(herd)
	old := make([]int64, herd)
	for i := range targets {
		targets[i].Scope = scope
		c := e.own(targets[i], retain(e.brief()))
		e.complete(c, "old")
		old[i] = c.Attempt
	}
	lapse(e)
	verdicts := make([]store.Verdict, herd)
	errs := make([]error, herd+2)
	together(herd+2, func(i int) {
		if i >= herd {
			errs[i] = e.reapAll(soft)
			return
		}
		verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(targets[i]))
	})
	e.must(errors.Join(errs...))
	for i, id := range targets {
		v := verdicts[i]
		if v.Decision != store.DecisionExecute || v.Record.Attempt <= old[i] {
			e.Errorf("S7: an expired record of attempt %d got (%s, attempt %d), want to be made again with a larger token",
				old[i], v.Decision, v.Record.Attempt)
		}
		if rec := e.get(id); rec.State != store.StateInProgress || rec.Attempt != v.Record.Attempt {
			e.Errorf("S10: a record made again while the reaper ran is %s, want in_progress at attempt %d",
				describe(rec), v.Record.Attempt)
		}
	}
}

// reapAll reaps in small batches until nothing is left.
func (e *env) reapAll(soft bool) error {
	for {
		reaped, err := e.Store.(store.Reaper).Reap(e.ctx, 3, soft)
		if reaped == 0 || err != nil {
			return err
		}
	}
}

// testBusterRaces makes an operator race with an owner.
func testBusterRaces(t *testing.T, h Harness) {
	h.test(t, "forced bust against complete", func(e *env) {
		for _, id := range ids(rounds * 2) {
			c := e.own(id)
			var completed, busted error
			pair(func() { _, completed = e.Store.Complete(e.ctx, c, answer("done")) },
				func() { busted = e.Store.(store.Buster).Bust(e.ctx, id, true) })
			e.must(busted)
			if completed != nil && !errors.Is(completed, store.ErrFenced) {
				e.Errorf("S6: complete got %v, want nil or ErrFenced", completed)
			}
			if next := e.own(id); next.Attempt <= c.Attempt {
				e.Errorf("S7: attempt %d was granted after attempt %d was busted", next.Attempt, c.Attempt)
			}
		}
	})
	h.test(t, "bust against reserve", func(e *env) {
		for _, id := range ids(rounds) {
			c := e.own(id)
			e.complete(c, "stored")
			verdicts := make([]store.Verdict, crowd)
			errs := make([]error, crowd)
			together(crowd, func(i int) {
				if i == 0 {
					errs[i] = e.Store.(store.Buster).Bust(e.ctx, id, false)
					return
				}
				verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(id))
			})
			e.must(errors.Join(errs...))
			e.checkBusted(c, verdicts[1:])
		}
	})
}

// checkBusted checks that after a bust one caller executes, unless all callers came before it.
func (e *env) checkBusted(c store.Claim, verdicts []store.Verdict) {
	e.Helper()
	granted := 0
	for _, v := range verdicts {
		if v.Decision != store.DecisionExecute {
			continue
		}
		granted++
		if v.Record.Attempt <= c.Attempt {
			e.Errorf("S7: attempt %d was granted after attempt %d was busted", v.Record.Attempt, c.Attempt)
		}
	}
	want := store.StateInProgress
	if granted == 0 {
		want = store.StateNone
	}
	if granted > 1 {
		e.Errorf("S1: %d callers may execute after one bust, want at most 1", granted)
	}
	e.wantState(c.ID, want, "section 4: after a bust")
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// testReconcilerRaces makes late owners, resolvers and operators settle one unknown record at the same moment.
func testReconcilerRaces(t *testing.T, h Harness) {
	h.test(t, "late owner against another answer", raceOwnerAndAnswer)
	h.test(t, "late owner against the same answer", func(e *env) {
		for _, id := range ids(rounds * 2) {
			c := e.lose(id)
			var owner, resolver error
			pair(func() { _, owner = e.Store.Complete(e.ctx, c, answer("same")) },
				func() { resolver = e.resolver().ResolveCompleted(e.ctx, c, answer("same")) })
			if owner != nil || resolver != nil {
				e.Errorf("S6: the same settlement twice: owner got %v, resolver got %v, want both to succeed", owner,
					resolver)
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
	h.test(t, "one attempt, many nodes", raceForTheAttempt)
	h.test(t, "a resolved step against retries", raceResolvedStepAndRetries)
}

// resolver returns the store as a [store.Reconciler].
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
			e.Errorf("S6: the loser must be told the stored answer %q, got %v", want, loser)
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

// raceNotExecutedAndRetries checks that a resolution lets one retry execute, and none before it.
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
