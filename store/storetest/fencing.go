package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testFencing checks that a write by anyone but the current owner changes nothing (S6).
func testFencing(t *testing.T, h Harness) {
	situations := []struct {
		name    string
		prepare func(e *env, id store.ID) (stale store.Claim, want store.FencedError)
	}{
		{"by a replaced owner", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.ownAtPoint(id, resume, lease(e.brief()))
			lapse(e)
			return old, store.FencedError{Current: e.own(id, resume).Attempt, State: store.StateInProgress}
		}},
		{"after a retry took over", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.own(id)
			e.must(e.Store.Release(e.ctx, old, "no stock"))
			return old, store.FencedError{Current: e.own(id).Attempt, State: store.StateInProgress}
		}},
		{"after the record was made anew", func(e *env, id store.ID) (store.Claim, store.FencedError) {
			old := e.own(id, retain(e.brief()))
			e.until(e.complete(old, "old"))
			current := e.own(id)
			expires := e.complete(current, "new")
			return old, store.FencedError{
				Current: current.Attempt, State: store.StateCompleted, Response: &answer("new").Response, ExpiresAt: expires,
			}
		}},
		{"without a record", func(_ *env, id store.ID) (store.Claim, store.FencedError) {
			return store.Claim{ID: id, Attempt: 1}, store.FencedError{}
		}},
		{"without a record and an attempt", func(_ *env, id store.ID) (store.Claim, store.FencedError) {
			return store.Claim{ID: id}, store.FencedError{}
		}},
	}
	for _, s := range situations {
		h.test(t, s.name, func(e *env) {
			for _, w := range ownerWrites(has[store.Reconciler](h.probe)) {
				e.Run(w.name, func(t *testing.T) {
					e := e.with(t)
					stale, want := s.prepare(e, id(w.name))
					want.Attempt = stale.Attempt
					e.refuses(w, stale, want)
				})
			}
		})
	}
	h.test(t, "repeated settlements succeed", repeatedSettlements)
	h.test(t, "an owner that was resolved gets the stored answer", func(e *env) {
		c := e.own(id("key"))
		e.complete(c, "stored")
		_, err := e.Store.Complete(e.ctx, c, answer("other"))
		var fenced *store.FencedError
		if !errors.As(err, &fenced) || fenced.Response == nil || !fenced.Response.Equal(&answer("stored").Response) {
			e.Errorf("S6: a second answer got %v, want a *FencedError with the stored answer", err)
		}
	})
	h.test(t, "extend never revives unknown", func(e *env) {
		c := e.lose(id("key"))
		e.wantFenced(e.Store.Extend(e.ctx, c, calm), "S6: extend of an unknown record")
		e.wantState(c.ID, store.StateUnknown, "S6: after a refused extend")
	})
}

// ownerWrite is one of the writes that name an attempt.
type ownerWrite struct {
	name  string
	write func(e *env, c store.Claim) error
}

func ownerWrites(reconciles bool) []ownerWrite {
	writes := []ownerWrite{
		{"extend", func(e *env, c store.Claim) error { return e.Store.Extend(e.ctx, c, 5*calm) }},
		{"checkpoint", func(e *env, c store.Claim) error {
			return e.Store.Checkpoint(e.ctx, c, store.Checkpoint{Point: "stale", Data: []byte("stale"), NotReplayable: true})
		}},
		{"complete", func(e *env, c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, answer("stale"))
			return err
		}},
		{"release", func(e *env, c store.Claim) error { return e.Store.Release(e.ctx, c, "stale") }},
		{"abandon", func(e *env, c store.Claim) error { return e.Store.Abandon(e.ctx, c, "stale") }},
	}
	if !reconciles {
		return writes
	}
	return append(writes,
		ownerWrite{"resolve completed", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).ResolveCompleted(e.ctx, c, answer("stale"))
		}},
		ownerWrite{"resolve not executed", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).ResolveNotExecuted(e.ctx, c, "stale")
		}},
		ownerWrite{"resolve step", func(e *env, c store.Claim) error {
			return e.resolver().ResolveStep(e.ctx, c, store.Checkpoint{Point: "stale", Data: []byte("stale")})
		}},
		ownerWrite{"begin reconcile", func(e *env, c store.Claim) error {
			return e.resolver().BeginReconcile(e.ctx, c, 0, time.Minute)
		}},
		ownerWrite{"postpone", func(e *env, c store.Claim) error {
			return e.resolver().Postpone(e.ctx, c, notYet(0, 1))
		}},
		ownerWrite{"requeue", func(e *env, c store.Claim) error {
			return e.Store.(store.Reconciler).Requeue(e.ctx, c, "stale")
		}})
}

// refuses checks that a write is refused, that the refusal tells what stands there, and that nothing changed.
func (e *env) refuses(w ownerWrite, c store.Claim, want store.FencedError) {
	e.Helper()
	before := e.get(c.ID)
	err := w.write(e, c)
	var fenced *store.FencedError
	if !errors.As(err, &fenced) {
		e.Fatalf("S6: %s by attempt %d got error %v, want a *FencedError", w.name, c.Attempt, err)
	}
	want.Op = w.name
	if problem := sameFenced(fenced, &want); problem != nil {
		e.Error(problem)
	}
	if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
		e.Errorf("S6: a fenced %s changed the record: %s", w.name, diff)
	}
}

// repeatedSettlements repeats what already happened, as an owner does whose reply was lost.
func repeatedSettlements(e *env) {
	settlements := []struct {
		name   string
		settle func(c store.Claim) error
	}{
		{"complete", func(c store.Claim) error {
			_, err := e.Store.Complete(e.ctx, c, rich())
			return err
		}},
		{"release", func(c store.Claim) error { return e.Store.Release(e.ctx, c, "no stock") }},
		{"abandon", func(c store.Claim) error { return e.Store.Abandon(e.ctx, c, "timeout") }},
	}
	for _, s := range settlements {
		c := e.own(id(s.name))
		e.must(s.settle(c))
		before := e.get(c.ID)
		e.pass(e.resolution())
		for range 3 {
			if err := s.settle(c); err != nil {
				e.Errorf("S6: repeating %s with the same content got %v, want success", s.name, err)
			}
		}
		if diff := diffRecords(e.get(c.ID), before, 0); diff != "" {
			e.Errorf("S6: repeating %s changed the record: %s", s.name, diff)
		}
	}
}
