package storetest

import (
	"testing"

	"github.com/onceward/onceward/store"
)

// testRestart checks that records survive a restart of the store with their whole content.
func testRestart(t *testing.T, h Harness) {
	for _, f := range fixtures(h.probe) {
		h.test(t, f.name, func(e *env) {
			f.build(e, ids(1))
			before := e.get(ids(1)[0])
			e.reopen()
			if diff := diffRecords(e.get(ids(1)[0]), before, 0); diff != "" {
				e.Errorf("section 11: after a restart the record is %s", diff)
			}
		})
	}
	h.test(t, "the owner goes on", func(e *env) {
		c := e.ownAtPoint(id("key"))
		e.reopen()
		e.must(e.Store.Extend(e.ctx, c, calm))
		e.wantDecision(request(c.ID), store.DecisionInProgress, "S1: a grant survives a restart")
		e.complete(c, "done")
		e.reopen()
		v := e.wantDecision(request(c.ID), store.DecisionReplay, "E7: a result is durable before it is sent")
		if string(v.Record.Response.Body) != "done" {
			e.Errorf("E7: after a restart %q is replayed, want what was stored", v.Record.Response.Body)
		}
	})
	h.test(t, "a fence survives", func(e *env) {
		old := e.own(id("key"), resume, lease(e.brief()))
		lapse(e)
		e.own(id("key"), resume)
		e.reopen()
		_, err := e.Store.Complete(e.ctx, old, answer("late"))
		e.wantFenced(err, "S6: a replaced owner after a restart")
	})
	if has[store.LateCompletionKeeper](h.probe) {
		h.test(t, "late completions", func(e *env) {
			f := store.LateCompletion{
				Claim: store.Claim{ID: id("key"), Attempt: 3}, Response: rich().Response,
				At: e.now(),
			}
			e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
			e.reopen()
			e.wantLateCompletions(id("key"), f)
		})
	}
	if has[store.ExternalEventKeeper](h.probe) {
		h.test(t, "external events", func(e *env) {
			n := externalEvent("psp", "evt", "charge")
			e.addExternal(n, true)
			e.reopen()
			e.addExternal(n, false)
			e.wantExternalEvents("psp", []string{"charge"}, n)
		})
	}
	if has[store.Auditor](h.probe) {
		h.test(t, "acts", func(e *env) {
			before, after := entry(id("key"), 1), entry(id("key"), 2)
			e.audit(before)
			e.reopen()
			e.audit(after)
			e.wantAudit(id("key"), before, after)
		})
	}
	if has[store.ExecutionAuditor](h.probe) {
		h.test(t, "audited requests", func(e *env) {
			e.addExecution(requested(id("key"), 1))
			e.reopen()
			if n := len(e.executions(store.AuditFilter{ID: id("key")})); n != 1 {
				e.Errorf("L7: after a restart %d requests are listed, want 1", n)
			}
		})
	}
	if has[store.Transactor](h.probe) {
		h.test(t, "a committed transaction", func(e *env) {
			v, err := e.transact(request(id("key")), e.inserting("row", committing("done")))
			e.must(err)
			e.reopen()
			if e.Business.Count("row") != 1 {
				e.Error("E1: after a restart the committed work is gone")
			}
			if rec := e.get(id("key")); rec.State != store.StateCompleted || v.Decision != store.DecisionExecute {
				e.Errorf("E1: after a restart the record is %s, want completed", describe(rec))
			}
		})
	}
}
