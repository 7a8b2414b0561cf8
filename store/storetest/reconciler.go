package storetest

import (
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
			e.Errorf("section 4: got (%s, attempt %d), want retried after attempt %d", v.Origin, v.Record.Attempt, c.Attempt)
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
			e.Errorf("B3: without a limit the record is dead letter %t after %d tries, want 20", rec.DeadLetter, rec.ReconcileCount)
		}
	})
	h.test(t, "a dead letter can be settled", func(e *env) {
		for key, settle := range map[string]func(c store.Claim) error{
			"completed":    func(c store.Claim) error { return e.resolver().ResolveCompleted(e.ctx, c, rich()) },
			"not executed": func(c store.Claim) error { return e.resolver().ResolveNotExecuted(e.ctx, c, "asked them") },
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
			if f.want == store.StateUnknown || f.want == store.StateRetryable || f.name == "in progress, resumable, lease over" {
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
	for try := 1; try <= limit+1; try++ {
		from := e.now()
		wait := time.Duration(try) * time.Minute
		e.must(e.resolver().BeginReconcile(e.ctx, c, try-1, calm))
		e.must(e.resolver().Postpone(e.ctx, c, store.Postponement{Count: try, Wait: wait, MaxAttempts: limit, Reason: "provider is down"}))
		to := e.now()
		rec := e.get(c.ID)
		if rec.ReconcileAt.Before(from.Add(wait-e.resolution())) || rec.ReconcileAt.After(to.Add(wait+e.resolution())) {
			e.Errorf("B3: postponed by %s at %s, the record is due at %s", wait, from, rec.ReconcileAt)
		}
		if rec.State != store.StateUnknown || rec.ReconcileCount != try || rec.DeadLetter != (try >= limit) {
			e.Errorf("B3: after %d of %d tries the record is %s, count %d, dead letter %t",
				try, limit, rec.State, rec.ReconcileCount, rec.DeadLetter)
		}
		if rec.ReconcileError != "provider is down" || rec.LastError != "connection reset" {
			e.Errorf("B3: the record says %q and %q, want why it was postponed and why it was lost", rec.ReconcileError, rec.LastError)
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
