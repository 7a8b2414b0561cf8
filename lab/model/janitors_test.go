package model

import (
	"time"

	"github.com/onceward/onceward/store"
)

// postponeLimit is after how many failures a reconciliation is put before a person.
const postponeLimit = 2

// clockMoves let time pass. A clock that steps back gives every stored time a tick more; a time that has passed may
// have passed only just, and counts again.
func (s *search) clockMoves(w world) {
	s.try(w, action{"the clock", "ticks"}, func(t *turn) {
		t.pass(1)
		for i := range t.world.requests {
			r := &t.world.requests[i]
			r.lease = max(r.lease-1, 0)
			if r.flight = max(r.flight-1, 0); r.flight == 0 {
				t.timeOut(r)
			}
		}
	})
	if s.back && !w.stepped {
		s.try(w, action{"the clock", "steps back"}, func(t *turn) {
			t.pass(-1)
			t.stepped = true
		})
	}
}

// pass moves everything that counts by the store's clock.
func (t *turn) pass(ticks int8) {
	by := time.Duration(ticks) * tick
	t.row = t.rows.shift(t.row, by)
	for i := range t.world.requests {
		r := &t.world.requests[i]
		r.seen = t.rows.shift(r.seen, by)
	}
	t.ledger.left = max(t.ledger.left-ticks, 0)
	if !t.stored().State.Settled() {
		t.ledger.left = 0
	}
}

// janitorMoves are those of the sweeper and the reaper. Any number of them is the same as one, because each looks and
// writes in one step.
func (s *search) janitorMoves(w world) {
	s.try(w, action{"the sweeper", "sweeps"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventSweep})
	})
	s.try(w, action{"the reaper", "reaps"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventReap, Soft: s.soft})
	})
}

// reconcilerMoves are to ask the provider and, later, to write what it said.
func (s *search) reconcilerMoves(w world) {
	rec := s.rows.record(w.row)
	if w.asked.verdict == idle && rec.State == store.StateUnknown && !now.Before(rec.ReconcileAt) {
		s.askMoves(w, &rec)
	}
	if w.asked.verdict == idle {
		return
	}
	s.try(w, action{"the reconciler", "writes " + w.asked.verdict.String()}, func(t *turn) {
		t.conclude()
		t.asked = inquiry{}
	})
	if w.asked.verdict == noAnswer {
		return // that is not repeated
	}
	s.try(w, action{"the reconciler", "writes " + w.asked.verdict.String() + ", the reply is lost"}, func(t *turn) {
		t.conclude()
	})
}

// askMoves are the answers of the provider. "Not found" is concluded to be "not executed" only where no owner and no
// call is left that could still get there: that is what the wait for the longest transit and the knowledge that the
// owner is gone come to (B3). A person who is asked about a dead letter does the same, but does not postpone it.
func (s *search) askMoves(w world, rec *store.Record) {
	if rec.ReconcileCount >= postponeLimit && !rec.DeadLetter {
		s.try(w, action{"the reconciler", "gives up after tries that were not heard of again"}, func(t *turn) {
			t.asked = inquiry{noAnswer, int8(rec.Attempt), int8(rec.ReconcileCount)}
		})
		return
	}
	try := inquiry{noAnswer, int8(rec.Attempt), int8(rec.ReconcileCount) + 1}
	begin := func(t *turn) {
		if rec.DeadLetter {
			try.verdict = idle
			return
		}
		_, _, _ = t.apply(store.Event{
			Kind: store.EventBeginReconcile, Attempt: rec.Attempt, Count: rec.ReconcileCount, Lease: postpone,
		})
	}
	s.try(w, action{"the reconciler", "asks a provider that is silent"}, func(t *turn) {
		begin(t)
		t.asked = try.or(idle)
	})
	s.try(w, action{"the reconciler", "begins to ask and is gone"}, begin)
	s.try(w, action{"the reconciler", "asks the provider"}, func(t *turn) {
		begin(t)
		switch {
		case t.ledger.happened():
			t.asked = try.or(found)
		case t.ownersGone() || s.rules.hastyReconciler:
			t.asked = try.or(notExecuted)
		default:
			t.asked = try.or(idle)
		}
	})
}

// or is the inquiry with what was learned or, if that is nothing, as it began.
func (i inquiry) or(learned verdict) inquiry {
	if learned != idle {
		i.verdict = learned
	}
	if i.verdict == idle {
		return inquiry{}
	}
	return i
}

// conclude writes what was learned about an attempt, if it is still the one that is unknown.
func (t *turn) conclude() {
	_, _, err := t.apply(t.event(t.asked))
	if err == nil && t.asked.verdict == notExecuted {
		t.deny(t.asked.attempt)
	}
}

func (v verdict) String() string {
	return [...]string{"nothing", "completed", "not executed", "a failure"}[v]
}

// event is how the reconciler writes down what it has learned: of a phased operation it is the step that was in doubt.
func (t *turn) event(told inquiry) store.Event {
	phased := t.policy == store.LostResume && !t.rules.stepIsOperation
	ev := store.Event{Attempt: int64(told.attempt), Token: int64(t.floor) + 1}
	switch {
	case told.verdict == found && phased:
		ev.Kind, ev.Checkpoint.Point = store.EventResolveStep, pointCalled
	case told.verdict == notExecuted && phased:
		ev.Kind, ev.Checkpoint.Point = store.EventResolveStep, pointStart
	case told.verdict == found:
		ev.Kind, ev.Completion = store.EventResolveCompleted, &store.Completion{Response: learned.response()}
	case told.verdict == notExecuted:
		ev.Kind = store.EventResolveNotExecuted
	default:
		ev.Kind, ev.Count, ev.Lease, ev.MaxAttempts = store.EventPostpone, int(told.count), postpone, postponeLimit
	}
	return ev
}

// endMoves are those of a person who ends a phased operation that has lost its owner, because no code goes on with it
// any more (I16). The person looks at what was done, and waits until no owner can do more.
func (s *search) endMoves(w world) {
	rec := s.rows.record(w.row)
	if !s.ends || rec.State != store.StateInProgress || now.Before(rec.LeaseUntil) {
		return
	}
	s.try(w, action{"the operator", "ends it as completed"}, func(t *turn) {
		if t.ledger.happened() && t.ledger.confirmed {
			_, _, _ = t.apply(store.Event{
				Kind: store.EventResolveCompleted, Attempt: rec.Attempt,
				Completion: &store.Completion{Response: learned.response()},
			})
		}
	})
	s.try(w, action{"the operator", "ends it as not executed"}, func(t *turn) {
		if t.ledger.happened() || !t.ownersGone() {
			return
		}
		_, _, err := t.apply(store.Event{Kind: store.EventResolveNotExecuted, Attempt: rec.Attempt})
		if err == nil {
			t.deny(int8(rec.Attempt))
		}
	})
}

func (s *search) operatorMoves(w world) {
	if !s.bust {
		return
	}
	s.try(w, action{"the operator", "busts"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventBust})
	})
	s.try(w, action{"the operator", "busts by force"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventBust, Force: true})
	})
	s.try(w, action{"the operator", "keeps it for longer"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventRetain, Lease: retention})
	})
	s.try(w, action{"the operator", "keeps it for a moment"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventRetain, Lease: tick})
	})
	s.try(w, action{"the operator", "requeues"}, func(t *turn) {
		_, _, _ = t.apply(store.Event{Kind: store.EventRequeue, Attempt: t.stored().Attempt})
	})
}
