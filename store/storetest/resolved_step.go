package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testResolvedStep checks that settling a step settles the step (I15): the operation is in progress again, without an owner, and
// the next attempt goes on from what was learned.
func testResolvedStep(t *testing.T, h Harness) {
	h.test(t, "the next attempt goes on behind it", func(e *env) {
		c := e.resolveStep(id("key"))
		rec := e.get(c.ID)
		if rec.State != store.StateInProgress || rec.Attempt <= c.Attempt || rec.LeaseUntil.After(e.now()) {
			e.Errorf("I15: a record whose step was resolved is %s, leased until %s", describe(rec), rec.LeaseUntil)
		}
		v := e.wantDecision(request(c.ID, resume), store.DecisionExecute, "I15: an operation whose step was resolved")
		if v.Origin != store.OriginResumed || v.Record.Attempt <= rec.Attempt {
			e.Errorf("I15: got (%s, attempt %d), want resumed behind attempt %d", v.Origin, v.Record.Attempt, rec.Attempt)
		}
		if v.Record.Point != "shipped" || string(v.Record.Data) != "learned" || v.Record.ProviderID != "ch_7" {
			e.Errorf("I15: the next attempt starts at %q with %q and %q", v.Record.Point, v.Record.Data, v.Record.ProviderID)
		}
		e.complete(store.Claim{ID: c.ID, Attempt: v.Record.Attempt}, "done")
	})
	h.test(t, "the attempt that was resolved is fenced", func(e *env) {
		c := e.resolveStep(id("key"))
		before := e.get(c.ID)
		for _, w := range ownerWrites(has[store.Reconciler](h.probe)) {
			e.wantFenced(w.write(e, c), "S6: "+w.name+" of an attempt whose step was resolved")
		}
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("S6: a fenced write changed the record: %s", diff)
		}
	})
	h.test(t, "repeated", func(e *env) {
		c := e.resolveStep(id("key"))
		before := e.get(c.ID)
		e.must(e.resolver().ResolveStep(e.ctx, c, learned()))
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("S6: repeating a resolution changed the record: %s", diff)
		}
		e.wantFenced(e.resolver().ResolveStep(e.ctx, c, store.Checkpoint{Point: "elsewhere"}), "S6: another resolution")
		e.wantDecision(request(c.ID, resume), store.DecisionExecute, "I15: an operation whose step was resolved")
		e.wantFenced(e.resolver().ResolveStep(e.ctx, c, learned()), "S6: a resolution that the next attempt has overtaken")
	})
	h.test(t, "only of phased operations", func(e *env) {
		c := e.lose(id("key"))
		e.wantFenced(e.resolver().ResolveStep(e.ctx, c, learned()), "section 4: a step of an operation that is not resumed")
	})
	h.test(t, "it is never swept", func(e *env) {
		c := e.resolveStep(id("key"))
		e.pass(e.brief())
		if has[store.Sweeper](h.probe) {
			e.sweep(everything)
		}
		e.wantState(c.ID, store.StateInProgress, "B1: a phased operation past its lease")
		if has[store.Lister](h.probe) {
			due := e.list(store.Filter{State: store.StateInProgress, Due: true})
			e.wantListed(due, []store.ID{c.ID}, "what is due for the resumer")
		}
	})
	h.test(t, "a person ends what has lost its owner", personEndsLostOperation)
}

// personEndsLostOperation checks that an operation whose owner is gone can be ended, whatever code is deployed (I16), and that one
// whose owner has its lease cannot.
func personEndsLostOperation(e *env) {
	ends := map[string]struct {
		end  func(c store.Claim) error
		want store.State
	}{
		"completed":    {func(c store.Claim) error { return e.resolver().ResolveCompleted(e.ctx, c, rich()) }, store.StateCompleted},
		"not executed": {func(c store.Claim) error { return e.resolver().ResolveNotExecuted(e.ctx, c, "undone by hand") }, store.StateRetryable},
		"step":         {func(c store.Claim) error { return e.resolver().ResolveStep(e.ctx, c, learned()) }, store.StateInProgress},
	}
	claims := make(map[string]store.Claim)
	for name, way := range ends {
		held := e.ownAtPoint(id("held, "+name), resume)
		e.wantFenced(way.end(held), "I16: "+name+" over an owner that has its lease")
		claims[name] = e.ownAtPoint(id(name), resume, lease(e.brief()))
	}
	lapse(e)
	for name, way := range ends {
		c := claims[name]
		e.must(way.end(c))
		e.wantState(c.ID, way.want, "I16: a lost operation that a person ended as "+name)
		e.must(way.end(c)) // the reply may be lost
		for _, w := range ownerWrites(false) {
			if w.name == "release" && name == "not executed" {
				continue // it says the same
			}
			e.wantFenced(w.write(e, c), "S6: "+w.name+" of an owner whose operation was ended as "+name)
		}
	}
	if rec := e.get(claims["not executed"].ID); rec.Point != "" || len(rec.Data) != 0 {
		e.Errorf("I16: a retry of what was not executed would start at %q with %q", rec.Point, rec.Data)
	}
}

// learned is what was learned of a step.
func learned() store.Checkpoint {
	return store.Checkpoint{Point: "shipped", Data: []byte("learned"), ProviderID: "ch_7"}
}

// resolveStep loses a phased operation and resolves the step that it was lost in.
func (e *env) resolveStep(id store.ID) store.Claim {
	e.Helper()
	c := e.ownAtPoint(id, resume)
	e.must(e.Store.Abandon(e.ctx, c, "lost in doubt"))
	e.must(e.resolver().ResolveStep(e.ctx, c, learned()))
	return c
}

// raceForTheTry checks that of many nodes which saw a record due one makes the try (B6): it is counted once.
func raceForTheTry(e *env) {
	for _, id := range ids(rounds) {
		c := e.lose(id)
		errs := make([]error, crowd)
		together(crowd, func(i int) { errs[i] = e.resolver().BeginReconcile(e.ctx, c, 0, time.Minute) })
		began := 0
		for _, err := range errs {
			if err == nil {
				began++
			} else {
				e.wantFenced(err, "B6: a try that another node makes")
			}
		}
		if rec := e.get(id); began != 1 || rec.ReconcileCount != 1 {
			e.Errorf("B6: %d nodes began the first try, and %d tries are counted", began, rec.ReconcileCount)
		}
		e.wantFenced(e.resolver().Postpone(e.ctx, c, notYet(2, 1)), "B6: the end of a try that has not begun")
		if rec := e.get(id); rec.DeadLetter {
			e.Error("B6: a try that has not begun made a dead letter")
		}
	}
}

// raceResolvedStepAndRetries checks that a resolved step frees the operation for one attempt, and for none before it.
func raceResolvedStepAndRetries(e *env) {
	for _, id := range ids(rounds) {
		c := e.lose(id, resume)
		verdicts := make([]store.Verdict, crowd)
		errs := make([]error, crowd)
		together(crowd, func(i int) {
			if i == 0 {
				errs[i] = e.resolver().ResolveStep(e.ctx, c, learned())
				return
			}
			verdicts[i], errs[i] = e.Store.Reserve(e.ctx, request(id, resume))
		})
		e.must(errors.Join(errs...))
		verdicts = append(verdicts[1:], e.reserve(request(id, resume)))
		e.onlyWinner(verdicts)
		for _, v := range verdicts {
			if v.Decision == store.DecisionExecute && v.Record.Point != "shipped" {
				e.Errorf("I15: an attempt started at %q before the step was resolved", v.Record.Point)
			}
		}
	}
}
