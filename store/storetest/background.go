package storetest

import (
	"errors"
	"testing"

	"github.com/onceward/onceward/store"
)

// testSweeper checks which records a sweep takes and which it leaves (B1).
func testSweeper(t *testing.T, h Harness) {
	h.test(t, "limit and count", func(e *env) {
		e.lapsedClaims(10)
		e.wantWork("swept", e.sweep(0), 0)
		e.wantWork("swept", e.sweep(3), 3)
		e.wantStates(ids(10), map[store.State]int{store.StateUnknown: 3, store.StateInProgress: 7})
		e.wantWork("swept", e.sweep(everything), 7)
		e.wantWork("swept", e.sweep(everything), 0)
		e.wantStates(ids(10), map[store.State]int{store.StateUnknown: 10})
	})
	h.test(t, "due for reconciliation at once", func(e *env) {
		c := e.lapsedClaims(1)[0]
		from := e.now()
		e.sweep(everything)
		rec := e.get(c.ID)
		if rec.ReconcileAt.Before(from.Add(-e.resolution())) || rec.ReconcileAt.After(e.now()) {
			e.Errorf("section 4: swept after %s, the record is due at %s, want at once", from, rec.ReconcileAt)
		}
		if rec.LastError == "" || rec.DeadLetter || rec.Attempt != c.Attempt {
			e.Errorf("section 4: a swept record says why, keeps its attempt and is no dead letter: %+v", rec)
		}
	})
	h.test(t, "only what is due", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if f.name != "in progress, lease over" {
				f.build(e, []store.ID{id(f.name)})
			}
		}
		// The leases that ended while the fixtures were built were swept by one of the fixtures.
		e.wantWork("swept of what is not due", e.sweep(everything), 0)
	})
	h.test(t, "resumable records are the resumer's", func(e *env) {
		c := e.own(id("key"), resume, lease(e.brief()))
		lapse(e)
		e.wantWork("swept of what is resumable", e.sweep(everything), 0)
		e.wantState(c.ID, store.StateInProgress, "B1: a resumable record is handed to the resumer")
	})
	if hasClock(h.probe) {
		h.test(t, "at the very end of a lease", func(e *env) {
			c := e.own(id("key"), lease(e.brief()))
			until := e.get(c.ID).LeaseUntil
			e.until(until.Add(-e.resolution()))
			e.wantWork("swept just before the lease is over", e.sweep(everything), 0)
			e.until(until)
			e.wantWork("swept when the lease is over", e.sweep(everything), 1)
		})
	}
}

// testReaper checks which records a reaper takes and which it leaves (B2).
func testReaper(t *testing.T, h Harness) {
	expire := func(e *env, n int) {
		for i, id := range ids(n) {
			c := e.own(id, retain(e.brief()))
			if i%2 == 0 {
				e.complete(c, "stored")
			} else {
				e.must(e.Store.Release(e.ctx, c, "no stock"))
			}
		}
		lapse(e)
	}
	h.test(t, "limit and count", func(e *env) {
		expire(e, 10)
		e.wantWork("reaped", e.reap(0, false), 0)
		e.wantWork("reaped", e.reap(3, false), 3)
		e.wantWork("reaped", e.reap(everything, false), 7)
		e.wantWork("reaped", e.reap(everything, false), 0)
		e.wantStates(ids(10), map[store.State]int{store.StateNone: 10})
	})
	h.test(t, "softly, limit and count", func(e *env) {
		expire(e, 10)
		e.wantWork("marked", e.reap(3, true), 3)
		if e.Advance != nil { // on a real clock the first one may already be removed
			e.wantWork("marked", e.reap(everything, true), 7)
			e.wantStates(ids(10), map[store.State]int{store.StateExpired: 10})
			e.wantWork("marked twice", e.reap(everything, true), 0)
		}
		for range 2 {
			e.reap(everything, true)
			lapse(e)
		}
		e.reap(everything, true)
		e.wantStates(ids(10), map[store.State]int{store.StateNone: 10})
	})
	h.test(t, "softly, step by step", func(e *env) {
		target := id("key")
		soft := store.Event{Kind: store.EventReap, Soft: true}
		e.complete(e.own(target, retain(e.brief())), "stored")
		for range 3 {
			if _, err := e.step(target, e.get(target), soft); err != nil {
				e.Error(err)
			}
			lapse(e)
		}
		e.wantState(target, store.StateNone, "B2: marked expired, then removed a retention later")
	})
	h.test(t, "only what is due", func(e *env) {
		for _, f := range fixtures(h.probe) {
			if !f.absent {
				f.build(e, []store.ID{id(f.name)})
			}
		}
		for _, soft := range []bool{true, false} {
			e.wantWork("reaped of what is not due", e.reap(everything, soft), 0)
		}
	})
	if hasClock(h.probe) {
		h.test(t, "at the very moment of expiry", func(e *env) {
			expires := e.complete(e.own(id("key"), retain(e.brief())), "stored")
			e.until(expires.Add(-e.resolution()))
			e.wantWork("reaped just before the expiry", e.reap(everything, false), 0)
			e.until(expires)
			e.wantWork("reaped at the expiry", e.reap(everything, false), 1)
		})
	}
}

func (e *env) wantWork(what string, got, want int) {
	e.Helper()
	if got != want {
		e.Errorf("section 7: %s: %d records, want %d", what, got, want)
	}
}

// wantStates counts records by state.
func (e *env) wantStates(targets []store.ID, want map[store.State]int) {
	e.Helper()
	got := make(map[store.State]int)
	for _, id := range targets {
		got[e.get(id).State]++
	}
	for state, n := range want {
		if got[state] != n {
			e.Errorf("section 7: %d records are %s, want %d", got[state], state, n)
		}
	}
}

// testBuster checks what an operator can remove, and what remains of it.
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
				e.Errorf("section 4: a forced bust leaves a tombstone with its token, but the record is %s",
					describe(rec))
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
