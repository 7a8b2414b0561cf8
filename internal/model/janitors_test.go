package model

import (
	"time"

	"github.com/onceward/onceward"
)

// postponeLimit is after how many failures a reconciliation is put before a person.
const postponeLimit = 2

// clockMoves let time pass. A clock that steps back gives every stored time a tick more; a time that has passed may have
// passed only just, and counts again.
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
		_, _, _ = t.apply(onceward.Event{Kind: onceward.EventSweep})
	})
	s.try(w, action{"the reaper", "reaps"}, func(t *turn) {
		_, _, _ = t.apply(onceward.Event{Kind: onceward.EventReap, Soft: s.soft})
	})
}

// reconcilerMoves are to ask the provider and, later, to write what it said.
func (s *search) reconcilerMoves(w world) {
	rec := s.rows.record(w.row)
	if w.asked.verdict == idle && rec.State == onceward.StateUnknown && !now.Before(rec.ReconcileAt) {
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
		return // nobody repeats that
	}
	s.try(w, action{"the reconciler", "writes " + w.asked.verdict.String() + ", the reply is lost"}, func(t *turn) {
		t.conclude()
	})
}

// askMoves are the answers of the provider. "Not found" is concluded to be "not executed" only where no owner and no call
// is left that could still get there: that is what the wait for the longest transit and the knowledge that the owner is
// gone come to (B3). A person who is asked about a dead letter does the same, but does not postpone it.
func (s *search) askMoves(w world, rec *onceward.Record) {
	attempt := int8(rec.Attempt)
	failed := inquiry{noAnswer, attempt}
	if rec.DeadLetter {
		failed = inquiry{}
	}
	s.try(w, action{"the reconciler", "asks a provider that is silent"}, func(t *turn) { t.asked = failed })
	s.try(w, action{"the reconciler", "asks the provider"}, func(t *turn) {
		switch {
		case t.ledger.happened():
			t.asked = inquiry{found, attempt}
		case t.ownersGone() || s.rules.hastyReconciler:
			t.asked = inquiry{notExecuted, attempt}
		default:
			t.asked = failed
		}
	})
}

// conclude writes what was learned about an attempt, if it is still the one that is unknown.
func (t *turn) conclude() {
	_, _, err := t.apply(t.asked.verdict.event(int64(t.asked.attempt)))
	if err == nil && t.asked.verdict == notExecuted {
		t.deny(t.asked.attempt)
	}
}

func (v verdict) String() string {
	return [...]string{"nothing", "completed", "not executed", "a failure"}[v]
}

func (v verdict) event(attempt int64) onceward.Event {
	switch v {
	case found:
		return onceward.Event{
			Kind: onceward.EventResolveCompleted, Attempt: attempt,
			Completion: &onceward.Completion{Response: learned.response()},
		}
	case notExecuted:
		return onceward.Event{Kind: onceward.EventResolveNotExecuted, Attempt: attempt}
	default:
		return onceward.Event{
			Kind: onceward.EventPostpone, Attempt: attempt, Lease: postpone, Limit: postponeLimit,
		}
	}
}

func (s *search) operatorMoves(w world) {
	if !s.bust {
		return
	}
	s.try(w, action{"the operator", "busts"}, func(t *turn) {
		_, _, _ = t.apply(onceward.Event{Kind: onceward.EventBust})
	})
	s.try(w, action{"the operator", "busts by force"}, func(t *turn) {
		_, _, _ = t.apply(onceward.Event{Kind: onceward.EventBust, Force: true})
	})
	s.try(w, action{"the operator", "requeues"}, func(t *turn) {
		_, _, _ = t.apply(onceward.Event{Kind: onceward.EventRequeue, Attempt: t.stored().Attempt})
	})
}
