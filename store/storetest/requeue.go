package storetest

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/store"
)

// testRequeue checks that reconciliation of an unknown record can be started anew (B3).
func testRequeue(t *testing.T, h Harness) {
	h.test(t, "a dead letter", requeuedDeadLetter)
	h.test(t, "one that waits", func(e *env) {
		c := e.lose(id("key"))
		e.postpone(c, 0)
		e.requeue(c, "now, please")
		e.wantQueued(c, "now, please")
		e.requeue(c, "again") // the reply to the first one may be lost
		e.wantQueued(c, "again")
	})
	h.test(t, "still settled as before", func(e *env) {
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
			e.requeue(c, "the provider is back")
			e.must(settle(c))
			e.wantFenced(e.resolver().Requeue(e.ctx, c, "too late"), "S6: requeue of what was settled by "+key)
			if rec := e.get(c.ID); !rec.State.Settled() || rec.DeadLetter {
				e.Errorf("B3: a requeued record settled by %s is %s, dead letter %t", key, describe(rec), rec.DeadLetter)
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
			e.wantFenced(e.resolver().Requeue(e.ctx, store.Claim{ID: c.ID, Attempt: attempt}, "guess"), "S6: requeue of another attempt")
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

// wantQueued checks that a record is due now, as if nobody had tried yet.
func (e *env) wantQueued(c store.Claim, reason string) {
	e.Helper()
	rec, now := e.get(c.ID), e.now()
	if rec.State != store.StateUnknown || rec.Attempt != c.Attempt || rec.DeadLetter || rec.ReconcileCount != 0 || rec.ReconcileError != reason {
		e.Errorf("B3: a requeued record is %s, dead letter %t, count %d, says %q", describe(rec), rec.DeadLetter, rec.ReconcileCount, rec.ReconcileError)
	}
	if rec.ReconcileAt.IsZero() || rec.ReconcileAt.After(now) {
		e.Errorf("B3: a record that was requeued before %s is due at %s", now, rec.ReconcileAt)
	}
	if has[store.Lister](e.Instance) {
		e.wantListed(e.list(store.Filter{State: store.StateUnknown, Due: true}), []store.ID{c.ID}, "what is unknown and due")
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
	rec.ReconcileError, rec.ReconcileAt, rec.ReconcileCount, rec.DeadLetter = dead.ReconcileError, dead.ReconcileAt, dead.ReconcileCount, true
	if diff := diffRecords(rec, dead, 0); diff != "" {
		e.Errorf("B3: a requeue changed more than when the record is due: %s", diff)
	}
	if has[store.Lister](e.Instance) {
		if stats := e.stats(); stats.DeadLetters != 0 || stats.Records[store.StateUnknown] != 1 {
			e.Errorf("M4: after a requeue %d dead letters of %d unknown records are counted", stats.DeadLetters, stats.Records[store.StateUnknown])
		}
	}
	e.postpone(c, 2)
	if rec := e.get(c.ID); rec.DeadLetter || rec.ReconcileCount != 1 {
		e.Errorf("B3: one try after a requeue the record is dead letter %t, count %d, want all tries before it", rec.DeadLetter, rec.ReconcileCount)
	}
}

// raceRequeueAndResolve checks that a requeue never brings back what was resolved.
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
