package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testReconciler checks how unknown records are settled from outside (B3).
func testReconciler(t *testing.T, h Harness) {
	h.test(t, "completed", func(e *env) {
		c := e.lose(id("key"))
		e.must(e.resolver().ResolveCompleted(e.ctx, c, rich()))
		v := e.wantDecision(request(c.ID), store.DecisionReplay, "B3: a resolved operation")
		e.sameResponse("the replay", v.Record.Response, rich().Response)
		e.wantExpiry(e.get(c.ID), rich().Retention)
		if got := e.get(c.ID).ProviderID; got != rich().ProviderID {
			e.Errorf("B3: the provider's id is %q, want %q", got, rich().ProviderID)
		}
	})
	h.test(t, "not executed", func(e *env) {
		c := e.lose(id("key"))
		e.must(e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived"))
		e.wantExpiry(e.get(c.ID), calm)
		v := e.wantDecision(request(c.ID), store.DecisionExecute, "B3: an operation that was not executed")
		if v.Origin != store.OriginRetried || v.Record.Attempt <= c.Attempt {
			e.Errorf("section 4: got (%s, attempt %d), want retried after attempt %d", v.Origin, v.Record.Attempt,
				c.Attempt)
		}
		_, err := e.Store.Complete(e.ctx, c, answer("late"))
		e.wantFenced(err, "S6: the owner that was resolved")
	})
	h.test(t, "postponed until dead", postponedUntilDead)
	h.test(t, "without a limit", func(e *env) {
		c := e.lose(id("key"))
		for range 20 {
			e.postpone(c, 0)
		}
		if rec := e.get(c.ID); rec.DeadLetter || rec.ReconcileCount != 20 {
			e.Errorf("B3: without a limit the record is dead letter %t after %d attempts, want 20", rec.DeadLetter,
				rec.ReconcileCount)
		}
	})
	h.test(t, "a dead letter can be settled", func(e *env) {
		for key, settle := range map[string]func(c store.Claim) error{
			"completed": func(c store.Claim) error { return e.resolver().ResolveCompleted(e.ctx, c, rich()) },
			"not executed": func(c store.Claim) error {
				return e.resolver().ResolveNotExecuted(e.ctx, c,
					"asked them")
			},
			"owner": func(c store.Claim) error {
				_, err := e.Store.Complete(e.ctx, c, answer("late"))
				return err
			},
		} {
			c := e.lose(id(key))
			e.postpone(c, 1)
			e.must(settle(c))
			if rec := e.get(c.ID); rec.DeadLetter || !rec.State.Settled() {
				e.Errorf("B3: a dead letter settled by %s is %s, dead letter %t", key, describe(rec), rec.DeadLetter)
			}
		}
	})
	h.test(t, "an answer about one attempt never settles another", func(e *env) {
		old := e.lose(id("key"))
		e.must(e.resolver().ResolveNotExecuted(e.ctx, old, "never arrived"))
		current := e.lose(id("key"))
		before := e.get(current.ID)
		for _, w := range ownerWrites(true) {
			e.wantFenced(w.write(e, old), "B3: "+w.name+" about an earlier attempt")
		}
		if diff := diffRecords(e.get(current.ID), before, 0); diff != "" {
			e.Errorf("B3: an answer about an earlier attempt changed the record: %s", diff)
		}
	})
	h.test(t, "repeated resolutions succeed", repeatedResolutions)
	h.test(t, "only unknown records", func(e *env) {
		for _, f := range ownerFixtures() {
			if f.want == store.StateUnknown || f.want == store.StateRetryable ||
				f.name == "in progress, resumable, lease over" {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			c := store.Claim{ID: target, Attempt: e.get(target).Attempt}
			e.wantFenced(e.resolver().ResolveCompleted(e.ctx, c, answer("guess")), "B3: resolving what is "+f.name)
			e.wantFenced(e.resolver().ResolveNotExecuted(e.ctx, c, "guess"), "B3: resolving what is "+f.name)
			e.wantFenced(e.resolver().BeginReconcile(e.ctx, c, 0, time.Minute), "B3: asking after what is "+f.name)
			e.wantFenced(e.resolver().Postpone(e.ctx, c, notYet(0, 1)), "B3: postponing what is "+f.name)
		}
	})
}

func postponedUntilDead(e *env) {
	c := e.lose(id("key"))
	const limit = 3
	for attempt := 1; attempt <= limit+1; attempt++ {
		from := e.now()
		wait := time.Duration(attempt) * time.Minute
		e.must(e.resolver().BeginReconcile(e.ctx, c, attempt-1, calm))
		e.must(e.resolver().Postpone(e.ctx, c,
			store.Postponement{Count: attempt, Wait: wait, MaxAttempts: limit, Reason: "provider is down"}))
		to := e.now()
		rec := e.get(c.ID)
		if rec.ReconcileAt.Before(from.Add(wait-e.resolution())) || rec.ReconcileAt.After(to.Add(wait+e.resolution())) {
			e.Errorf("B3: postponed by %s at %s, the record is due at %s", wait, from, rec.ReconcileAt)
		}
		if rec.State != store.StateUnknown || rec.ReconcileCount != attempt || rec.DeadLetter != (attempt >= limit) {
			e.Errorf("B3: after %d of %d attempts the record is %s, count %d, dead letter %t",
				attempt, limit, rec.State, rec.ReconcileCount, rec.DeadLetter)
		}
		if rec.ReconcileError != "provider is down" || rec.LastError != "connection reset" {
			e.Errorf("B3: the record says %q and %q, want why it was postponed and why it was lost",
				rec.ReconcileError, rec.LastError)
		}
	}
	e.wantDecision(request(c.ID), store.DecisionUnknown, "B3: a dead letter is still unknown")
}

func repeatedResolutions(e *env) {
	completed, released := e.lose(id("completed")), e.lose(id("not executed"))
	for range 3 {
		if err := e.resolver().ResolveCompleted(e.ctx, completed, rich()); err != nil {
			e.Errorf("S6: repeating a resolution with the same answer got %v", err)
		}
		if err := e.resolver().ResolveNotExecuted(e.ctx, released, "never arrived"); err != nil {
			e.Errorf("S6: repeating a resolution as not executed got %v", err)
		}
	}
	e.wantFenced(e.resolver().ResolveCompleted(e.ctx, completed, answer("other")), "S6: another answer")
	e.wantFenced(e.resolver().ResolveNotExecuted(e.ctx, completed, "no"), "S6: the opposite")
	e.wantFenced(e.resolver().ResolveCompleted(e.ctx, released, rich()), "S6: the opposite")
	e.wantFenced(e.resolver().Postpone(e.ctx, released, notYet(0, 0)), "S6: postponing what is settled")
}

// testLost checks that an unknown record contains when it became unknown: a reconciler must know how long ago its owner
// was lost (B3).
func testLost(t *testing.T, h Harness) {
	for name, lose := range waysToLose(h.probe) {
		h.test(t, name, func(e *env) {
			for outcome, settle := range waysToSettle(h.probe) {
				e.Run(outcome, func(t *testing.T) { e.with(t).lostAndFound(id(outcome), lose, settle) })
			}
		})
	}
}

// way does something to a record, for its attempt.
type way func(e *env, c store.Claim)

// waysToLose are the ways in which a record in progress, whose lease is over, becomes unknown.
func waysToLose(i Instance) map[string]way {
	ways := map[string]way{
		"abandoned": func(e *env, c store.Claim) { e.must(e.Store.Abandon(e.ctx, c, "timeout")) },
		"found by a reservation": func(e *env, c store.Claim) {
			v := e.wantDecision(request(c.ID), store.DecisionUnknown, "section 4: the lease is over")
			e.wantSince(v.Record, v.Now, v.Now, "the verdict")
			if !v.Lost() {
				e.Errorf("section 4: the verdict at %s does not tell that the owner was found lost: %+v", v.Now, v.Record)
			}
		},
	}
	if has[store.Sweeper](i) {
		ways["swept"] = func(e *env, _ store.Claim) { e.sweep(everything) }
	}
	return ways
}

// waysToSettle are the ways to settle an unknown record.
func waysToSettle(i Instance) map[string]way {
	ways := map[string]way{"completed late": func(e *env, c store.Claim) { e.complete(c, "late") }}
	if has[store.Reconciler](i) {
		ways["resolved as completed"] = func(e *env, c store.Claim) {
			e.must(e.resolver().ResolveCompleted(e.ctx, c, answer("found")))
		}
		ways["resolved as not executed"] = func(e *env, c store.Claim) {
			e.must(e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived"))
		}
	}
	return ways
}

// lostAndFound follows a record: the time at which it was lost stays until it is settled, and leaves no trace then.
func (e *env) lostAndFound(target store.ID, lose, settle way) {
	e.Helper()
	c := e.own(target, lease(e.brief()))
	lapse(e)
	from := e.now()
	lose(e, c)
	to := e.now()
	lost := e.get(target)
	e.wantSince(lost, from, to, "a lost record")
	e.pass(e.resolution())
	if has[store.Reconciler](e.Instance) {
		e.postpone(c, 1)
		e.wantSince(e.get(target), lost.SettledAt, lost.SettledAt, "a postponed record")
		e.requeue(c, "again")
		e.wantSince(e.get(target), lost.SettledAt, lost.SettledAt, "a requeued record")
	}
	if has[store.Lister](e.Instance) {
		for _, rec := range e.list(store.Filter{State: store.StateUnknown}) {
			if rec.ID == target {
				e.wantSince(rec, lost.SettledAt, lost.SettledAt, "a listed record")
			}
		}
	}
	from = e.now()
	settle(e, c)
	settled := e.get(target)
	e.wantSince(settled, from, e.now(), "a settled record")
	e.wantExpiry(settled, calm)
	if settled.State != store.StateRetryable {
		return
	}
	c = e.own(target)
	if rec := e.get(target); !rec.SettledAt.IsZero() {
		e.Errorf("S2: a record that is tried again was settled at %s", rec.SettledAt)
	}
	e.pass(e.resolution())
	from = e.now()
	e.complete(c, "done")
	e.wantSince(e.get(target), from, e.now(), "a retried record")
}

// wantSince checks when a record was settled or lost.
func (e *env) wantSince(rec store.Record, from, to time.Time, what string) {
	e.Helper()
	if rec.SettledAt.Before(from.Truncate(e.resolution())) || rec.SettledAt.After(to) {
		e.Errorf("section 11: %s is %s since %s, want between %s and %s", what, rec.State, rec.SettledAt, from, to)
	}
}

// testRequeue checks that reconciliation of an unknown record can be started again (B3).
func testRequeue(t *testing.T, h Harness) {
	h.test(t, "a dead letter", requeuedDeadLetter)
	h.test(t, "one that waits", func(e *env) {
		c := e.lose(id("key"))
		e.postpone(c, 0)
		e.requeue(c, "now, please")
		e.wantQueued(c, "now, please")
		e.requeue(c, "again") // the reply to the first call may be lost
		e.wantQueued(c, "again")
	})
	h.test(t, "still settled as before", func(e *env) {
		for key, settle := range map[string]func(c store.Claim) error{
			"completed": func(c store.Claim) error { return e.resolver().ResolveCompleted(e.ctx, c, rich()) },
			"not executed": func(c store.Claim) error {
				return e.resolver().ResolveNotExecuted(e.ctx, c,
					"asked them")
			},
			"owner": func(c store.Claim) error {
				_, err := e.Store.Complete(e.ctx, c, answer("late"))
				return err
			},
		} {
			c := e.lose(id(key))
			e.postpone(c, 1)
			e.requeue(c, "the provider is back")
			e.must(settle(c))
			e.wantFenced(e.resolver().Requeue(e.ctx, c, "too late"), "S6: requeue of what was settled by "+key)
			if rec := e.get(c.ID); !rec.State.Settled() || rec.DeadLetter {
				e.Errorf("B3: a requeued record settled by %s is %s, dead letter %t", key, describe(rec),
					rec.DeadLetter)
			}
		}
	})
	h.test(t, "only unknown records", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if f.want == store.StateUnknown {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			before := e.get(target)
			err := e.resolver().Requeue(e.ctx, store.Claim{ID: target, Attempt: before.Attempt}, "guess")
			e.wantFenced(err, "B3: requeue of what is "+f.name)
			if diff := diffRecords(e.get(target), before, 0); diff != "" {
				e.Errorf("B3: a refused requeue changed the record: %s", diff)
			}
		}
	})
	h.test(t, "only the attempt that is unknown", func(e *env) {
		c := e.lose(id("key"))
		e.postpone(c, 1)
		before := e.get(c.ID)
		for _, attempt := range []int64{0, c.Attempt - 1, c.Attempt + 1} {
			e.wantFenced(e.resolver().Requeue(e.ctx, store.Claim{ID: c.ID, Attempt: attempt}, "guess"),
				"S6: requeue of another attempt")
		}
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("S6: a refused requeue changed the record: %s", diff)
		}
	})
	h.test(t, "against resolve", raceRequeueAndResolve)
}

func (e *env) requeue(c store.Claim, reason string) {
	e.Helper()
	e.must(e.resolver().Requeue(e.ctx, c, reason))
}

// wantQueued checks that a record is due now, as if there had been no attempt yet.
func (e *env) wantQueued(c store.Claim, reason string) {
	e.Helper()
	rec, now := e.get(c.ID), e.now()
	if rec.State != store.StateUnknown || rec.Attempt != c.Attempt || rec.DeadLetter || rec.ReconcileCount != 0 ||
		rec.ReconcileError != reason {
		e.Errorf("B3: a requeued record is %s, dead letter %t, count %d, says %q", describe(rec), rec.DeadLetter,
			rec.ReconcileCount, rec.ReconcileError)
	}
	if rec.ReconcileAt.IsZero() || rec.ReconcileAt.After(now) {
		e.Errorf("B3: a record that was requeued before %s is due at %s", now, rec.ReconcileAt)
	}
	if has[store.Lister](e.Instance) {
		e.wantListed(e.list(store.Filter{State: store.StateUnknown, Due: true}), []store.ID{c.ID},
			"what is unknown and due")
	}
}

func requeuedDeadLetter(e *env) {
	c := e.lose(id("key"))
	e.postpone(c, 1)
	dead := e.get(c.ID)
	if !dead.DeadLetter {
		e.Fatal("B3: a record at its limit is no dead letter")
	}
	if has[store.Lister](e.Instance) {
		e.wantListed(e.list(store.Filter{State: store.StateUnknown, Due: true}), nil, "what is unknown and due")
	}
	e.pass(e.resolution())
	from := e.now()
	e.requeue(c, "the provider is back")
	e.wantQueued(c, "the provider is back")
	rec := e.get(c.ID)
	if rec.ReconcileAt.Before(from.Add(-e.resolution())) {
		e.Errorf("B3: a record that was requeued after %s is due at %s", from, rec.ReconcileAt)
	}
	rec.ReconcileError, rec.ReconcileAt, rec.ReconcileCount, rec.DeadLetter = dead.ReconcileError, dead.ReconcileAt,
		dead.ReconcileCount, true
	if diff := diffRecords(rec, dead, 0); diff != "" {
		e.Errorf("B3: a requeue changed more than when the record is due: %s", diff)
	}
	if has[store.Lister](e.Instance) {
		if stats := e.stats(); stats.DeadLetters != 0 || stats.Records[store.StateUnknown] != 1 {
			e.Errorf("M4: after a requeue %d dead letters of %d unknown records are counted", stats.DeadLetters,
				stats.Records[store.StateUnknown])
		}
	}
	e.postpone(c, 2)
	if rec := e.get(c.ID); rec.DeadLetter || rec.ReconcileCount != 1 {
		e.Errorf("B3: one attempt after a requeue the record is dead letter %t, count %d, want all attempts before it",
			rec.DeadLetter, rec.ReconcileCount)
	}
}

// raceRequeueAndResolve checks that a requeue never undoes a resolution.
func raceRequeueAndResolve(e *env) {
	for _, id := range ids(rounds * 2) {
		c := e.lose(id)
		e.postpone(c, 1)
		var resolved, requeued error
		pair(func() { resolved = e.resolver().ResolveCompleted(e.ctx, c, answer("found")) },
			func() { requeued = e.resolver().Requeue(e.ctx, c, "again") })
		e.must(resolved)
		if requeued != nil && !errors.Is(requeued, store.ErrFenced) {
			e.Errorf("S6: requeue got %v, want nil or ErrFenced", requeued)
		}
		if rec := e.get(id); rec.State != store.StateCompleted || rec.DeadLetter {
			e.Errorf("S6: a resolved record is %s, dead letter %t", describe(rec), rec.DeadLetter)
		}
	}
}

// testResolvedStep checks that resolving a step settles only the step (I15): the operation is in progress again,
// without an owner, and the next attempt continues from the resolved checkpoint.
func testResolvedStep(t *testing.T, h Harness) {
	h.test(t, "the next attempt goes on behind it", func(e *env) {
		c := e.resolveStep(id("key"))
		rec := e.get(c.ID)
		if rec.State != store.StateInProgress || rec.Attempt <= c.Attempt || rec.LeaseUntil.After(e.now()) {
			e.Errorf("I15: a record whose step was resolved is %s, leased until %s", describe(rec), rec.LeaseUntil)
		}
		v := e.wantDecision(request(c.ID, resume), store.DecisionExecute, "I15: an operation whose step was resolved")
		if v.Origin != store.OriginResumed || v.Record.Attempt <= rec.Attempt {
			e.Errorf("I15: got (%s, attempt %d), want resumed behind attempt %d", v.Origin, v.Record.Attempt,
				rec.Attempt)
		}
		if v.Record.Point != "shipped" || string(v.Record.Data) != "learned" || v.Record.ProviderID != "ch_7" {
			e.Errorf("I15: the next attempt starts at %q with %q and %q", v.Record.Point, v.Record.Data,
				v.Record.ProviderID)
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
		e.wantFenced(e.resolver().ResolveStep(e.ctx, c, learned()),
			"S6: a resolution that the next attempt has overtaken")
	})
	h.test(t, "only of phased operations", func(e *env) {
		c := e.lose(id("key"))
		e.wantFenced(e.resolver().ResolveStep(e.ctx, c, learned()),
			"section 4: a step of an operation that is not resumed")
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

// personEndsLostOperation checks that an operation whose owner is gone can be ended, whatever code is deployed (I16),
// and that an operation whose owner has its lease cannot.
func personEndsLostOperation(e *env) {
	ends := map[string]struct {
		end  func(c store.Claim) error
		want store.State
	}{
		"completed": {
			func(c store.Claim) error { return e.resolver().ResolveCompleted(e.ctx, c, rich()) },
			store.StateCompleted,
		},
		"not executed": {func(c store.Claim) error {
			return e.resolver().ResolveNotExecuted(e.ctx, c,
				"undone by hand")
		}, store.StateRetryable},
		"step": {
			func(c store.Claim) error { return e.resolver().ResolveStep(e.ctx, c, learned()) },
			store.StateInProgress,
		},
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
			if (w.name == "release" || w.name == "reject") && name == "not executed" {
				continue // these two have the same result
			}
			e.wantFenced(w.write(e, c), "S6: "+w.name+" of an owner whose operation was ended as "+name)
		}
	}
	if rec := e.get(claims["not executed"].ID); rec.Point != "" || len(rec.Data) != 0 {
		e.Errorf("I16: a retry of what was not executed would start at %q with %q", rec.Point, rec.Data)
	}
}

// learned returns the checkpoint that was found for a step.
func learned() store.Checkpoint {
	return store.Checkpoint{Point: "shipped", Data: []byte("learned"), ProviderID: "ch_7"}
}

// resolveStep loses a phased operation and resolves the step in which it was lost.
func (e *env) resolveStep(id store.ID) store.Claim {
	e.Helper()
	c := e.ownAtPoint(id, resume)
	e.must(e.Store.Abandon(e.ctx, c, "lost in doubt"))
	e.must(e.resolver().ResolveStep(e.ctx, c, learned()))
	return c
}

// raceForTheAttempt checks that of many nodes that saw a due record one makes the attempt (B6): it is counted once.
func raceForTheAttempt(e *env) {
	for _, id := range ids(rounds) {
		c := e.lose(id)
		errs := make([]error, crowd)
		together(crowd, func(i int) { errs[i] = e.resolver().BeginReconcile(e.ctx, c, 0, time.Minute) })
		began := 0
		for _, err := range errs {
			if err == nil {
				began++
			} else {
				e.wantFenced(err, "B6: an attempt that another node makes")
			}
		}
		if rec := e.get(id); began != 1 || rec.ReconcileCount != 1 {
			e.Errorf("B6: %d nodes began the first attempt, and %d attempts are counted", began, rec.ReconcileCount)
		}
		e.wantFenced(e.resolver().Postpone(e.ctx, c, notYet(2, 1)), "B6: the end of an attempt that has not begun")
		if rec := e.get(id); rec.DeadLetter {
			e.Error("B6: an attempt that has not begun made a dead letter")
		}
	}
}

// raceResolvedStepAndRetries checks that a resolved step lets one attempt execute the operation, and none before it.
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
