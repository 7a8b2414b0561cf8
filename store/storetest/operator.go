package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testBuster checks what an operator can remove, and what stays of it.
func testBuster(t *testing.T, h Harness) {
	h.test(t, "settled", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if !f.want.Settled() && f.want != store.StateExpired {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			e.bust(target, false)
			e.wantState(target, store.StateNone, "section 4: bust of what is "+f.name)
			if v := e.reserve(request(target)); v.Origin != store.OriginCreated {
				e.Errorf("section 4: after a bust a reservation got (%s, %s), want a new record", v.Decision, v.Origin)
			}
		}
	})
	h.test(t, "open, without force", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if f.want != store.StateInProgress && f.want != store.StateUnknown {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			e.wantFenced(e.Store.(store.Buster).Bust(e.ctx, target, false), "S2: bust without force of what is "+f.name)
			e.wantState(target, f.want, "S2: after a refused bust")
		}
	})
	h.test(t, "open, with force", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if f.want != store.StateInProgress && f.want != store.StateUnknown {
				continue
			}
			target := id(f.name)
			f.build(e, []store.ID{target})
			old := store.Claim{ID: target, Attempt: e.get(target).Attempt}
			e.bust(target, true)
			if rec := e.get(target); rec.State != store.StateExpired || rec.Attempt != old.Attempt {
				e.Errorf("section 4: a forced bust leaves a tombstone with its token, but the record is %s", describe(rec))
			}
			for _, w := range ownerWrites(has[store.Reconciler](h.probe)) {
				e.wantFenced(w.write(e, old), "section 4: the old owner is fenced, "+w.name+" of what was "+f.name)
			}
			if next := e.own(target); next.Attempt <= old.Attempt {
				e.Errorf("S7: after a forced bust attempt %d was granted after %d", next.Attempt, old.Attempt)
			}
			_, err := e.Store.Complete(e.ctx, old, answer("late"))
			e.wantFenced(err, "section 4: the old owner is fenced also when another one runs")
		}
	})
	h.test(t, "nothing there", func(e *env) {
		for _, force := range []bool{false, true} {
			if err := e.Store.(store.Buster).Bust(e.ctx, id("nobody"), force); !errors.Is(err, store.ErrNotFound) {
				e.Errorf("bust without a record got %v, want ErrNotFound", err)
			}
		}
	})
	h.test(t, "only the one", func(e *env) {
		for _, id := range ids(5) {
			e.complete(e.own(id), id.Key)
		}
		e.bust(ids(5)[2], false)
		e.wantStates(ids(5), map[store.State]int{store.StateCompleted: 4, store.StateNone: 1})
	})
}

// testFindings checks that completions that came too late are kept as evidence (S6).
func testLateCompletions(t *testing.T, h Harness) {
	h.test(t, "kept in order", func(e *env) {
		var want []store.LateCompletion
		for attempt := range int64(5) {
			f := store.LateCompletion{
				Claim:    store.Claim{ID: id("key"), Attempt: attempt + 1},
				Response: rich().Response,
				At:       e.now().Add(time.Duration(attempt) * time.Second),
			}
			f.Response.Status += int(attempt)
			want = append(want, f)
			e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
		}
		e.wantLateCompletions(id("key"), want...)
	})
	h.test(t, "each ID its own", func(e *env) {
		for _, target := range []store.ID{{Scope: "a", Key: "bc"}, {Scope: "ab", Key: "c"}, {Scope: "a", Key: "BC"}} {
			f := store.LateCompletion{Claim: store.Claim{ID: target, Attempt: 1}, Response: answer(target.Scope).Response, At: e.now()}
			e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
			e.wantLateCompletions(target, f)
		}
		e.wantLateCompletions(id("nobody"))
	})
	h.test(t, "of a late owner", func(e *env) {
		old := e.own(id("key"), resume, lease(e.brief()))
		lapse(e)
		e.complete(e.own(id("key"), resume), "the new owner's")
		_, err := e.Store.Complete(e.ctx, old, answer("late"))
		e.wantFenced(err, "S6: a replaced owner")
		f := store.LateCompletion{Claim: old, Response: answer("late").Response, At: e.now()}
		e.must(e.Store.(store.LateCompletionKeeper).AddLateCompletion(e.ctx, f))
		e.wantLateCompletions(old.ID, f)
		v := e.wantDecision(request(old.ID), store.DecisionReplay, "S6: a late completion changes no answer")
		if string(v.Record.Response.Body) != "the new owner's" {
			e.Errorf("S6: a late completion changed the stored answer to %q", v.Record.Response.Body)
		}
	})
}

// wantFindings checks what is kept for an ID.
func (e *env) wantLateCompletions(id store.ID, want ...store.LateCompletion) {
	e.Helper()
	got, err := e.Store.(store.LateCompletionKeeper).LateCompletions(e.ctx, id)
	e.must(err)
	if len(got) != len(want) {
		e.Fatalf("S6: %d late completions are kept for %q, want %d", len(got), id.Key, len(want))
	}
	for i := range want {
		if got[i].Claim != want[i].Claim || !near(got[i].At, want[i].At, e.resolution()) || !got[i].Response.Equal(&want[i].Response) {
			e.Errorf("S6: late completion %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}
