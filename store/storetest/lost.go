package storetest

import (
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testLost checks that an unknown record says since when: whoever reconciles must know how long ago its owner was lost (B3).
func testLost(t *testing.T, h Harness) {
	for name, lose := range waysToLose(h.probe) {
		h.test(t, name, func(e *env) {
			for outcome, settle := range waysToSettle(h.probe) {
				e.Run(outcome, func(t *testing.T) { e.with(t).lostAndFound(id(outcome), lose, settle) })
			}
		})
	}
}

// way does something to a record, in the name of its attempt.
type way func(e *env, c store.Claim)

// waysToLose are how a record in progress, whose lease is over, becomes unknown.
func waysToLose(i Instance) map[string]way {
	ways := map[string]way{
		"abandoned": func(e *env, c store.Claim) { e.must(e.Store.Abandon(e.ctx, c, "timeout")) },
		"found by a reservation": func(e *env, c store.Claim) {
			v := e.wantDecision(request(c.ID), store.DecisionUnknown, "section 4: the lease is over")
			e.wantSince(v.Record, v.Now, v.Now, "the verdict")
		},
	}
	if has[store.Sweeper](i) {
		ways["swept"] = func(e *env, _ store.Claim) { e.sweep(everything) }
	}
	return ways
}

// waysToSettle are what ends an unknown record.
func waysToSettle(i Instance) map[string]way {
	ways := map[string]way{"completed late": func(e *env, c store.Claim) { e.complete(c, "late") }}
	if has[store.Reconciler](i) {
		ways["resolved as completed"] = func(e *env, c store.Claim) { e.must(e.resolver().ResolveCompleted(e.ctx, c, answer("found"))) }
		ways["resolved as not executed"] = func(e *env, c store.Claim) {
			e.must(e.resolver().ResolveNotExecuted(e.ctx, c, "never arrived"))
		}
	}
	return ways
}

// lostAndFound follows a record: the moment at which it was lost stays until it is settled, and leaves no trace then.
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
