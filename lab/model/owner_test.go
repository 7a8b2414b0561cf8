package model

import (
	"errors"
	"fmt"

	"github.com/onceward/onceward/store"
)

// The recovery points of a phased operation: before the call to the provider, behind it, and behind the last step.
const (
	pointStart     = "start"
	pointCalled    = "called"
	pointConfirmed = "confirmed"
)

var requestNames = [maxRequests]string{"request 1", "request 2", "request 3"}

// ownerMoves are the moves of a request in reserved mode: reserve, call the provider, settle. Before each effect a real
// owner looks whether its lease still lasts; it can be paused between that look and the call, so that here it does not
// look at all.
func (s *search) ownerMoves(w world, i int) {
	r := w.requests[i]
	move := func(what string, f func(t *turn, r *request)) {
		s.try(w, action{requestNames[i], what}, func(t *turn) { f(t, &t.world.requests[i]) })
	}
	switch r.place {
	case unsent:
		if s.isTurnOf(w, i) {
			s.reserveMoves(i, move)
		}
	case reserving:
		s.reserveMoves(i, move)
	case looked:
		move("inserts what it did not find", func(t *turn, _ *request) { t.insert(i) })
	case granted:
		s.grantedMoves(&r, move)
	case called:
		s.calledMoves(move)
	case confirmed:
		s.completeMoves(move)
	case settling:
		move("repeats its completion", func(t *turn, r *request) { t.complete(r) })
	case releasing:
		move("repeats its release", func(t *turn, r *request) { t.release(r) })
	case rejecting:
		move("repeats its reject", func(t *turn, r *request) { t.reject(r) })
	}
	if r.flight != 0 {
		s.flightMoves(i, move)
	}
	if r.place == granted || r.place == calling || r.place == called || r.place == confirmed {
		s.ownedMoves(move)
	}
	if r.place != unsent && r.place != gone {
		move("crashes", func(_ *turn, r *request) { r.place = gone })
	}
}

// mover makes a move of one request.
type mover func(what string, f func(t *turn, r *request))

// isTurnOf keeps requests that are alike in order, because swapping them makes no new history.
func (s *search) isTurnOf(w world, i int) bool {
	return i == 0 || s.requests[i] != s.requests[i-1] || w.requests[i-1].place != unsent
}

func (s *search) reserveMoves(i int, move mover) {
	if s.rules.checkThenInsert {
		move("looks for a record", func(t *turn, r *request) { t.look(i) })
		return
	}
	move("reserves", func(t *turn, r *request) {
		rec, out, err := t.apply(t.reserve(i))
		t.decided(r, &rec, out, err)
	})
	move("reserves, the reply is lost", func(t *turn, r *request) {
		_, _, _ = t.apply(t.reserve(i))
		r.place = reserving
	})
}

// decided is the owner reading the reply to its reservation.
func (t *turn) decided(r *request, rec *store.Record, out store.Transition, err error) {
	r.place = gone
	switch {
	case err != nil:
		panic(fmt.Sprintf("model: a reservation ended in %v", err))
	case out.Decision == store.DecisionReplay:
		t.succeed(rec.Attempt, answerOf(&rec.Response))
	case out.Decision == store.DecisionExecute:
		r.place = granted
		switch rec.Point {
		case pointCalled:
			r.place = called
		case pointConfirmed:
			r.place = confirmed
		}
		r.attempt = int8(rec.Attempt)
		r.lease = t.leaseOf(rec)
		// A repeated grant does not say whether the first reply would have said "resumed".
		r.wary = out.Origin == store.OriginResumed || out.Origin == store.OriginRepeated && t.policy == store.LostResume
	}
}

// leaseOf is for how many ticks an owner counts on what it was granted: what the store says is left (S5).
func (t *turn) leaseOf(rec *store.Record) int8 {
	left := lease
	if !t.rules.freshLease {
		left = min(left, rec.LeaseUntil.Sub(now))
	}
	return int8(left / tick)
}

func (s *search) grantedMoves(r *request, move mover) {
	move("calls the provider", func(t *turn, r *request) {
		r.place, r.flight = calling, transit+1
	})
	if r.wary && !s.rules.waryRelease {
		return
	}
	move("releases", func(t *turn, r *request) { t.release(r) })
	move("releases, the reply is lost", func(t *turn, r *request) {
		t.release(r)
		r.place = releasing
	})
	move("rejects", func(t *turn, r *request) { t.reject(r) })
	move("rejects, the reply is lost", func(t *turn, r *request) {
		t.reject(r)
		r.place = rejecting
	})
}

// flightMoves are those of a call on its way. It gets there whether or not its owner still waits for it.
func (s *search) flightMoves(i int, move mover) {
	move("has its call executed", func(t *turn, r *request) {
		t.effect(i)
		r.flight = 0
		if r.place == calling {
			r.place = called
		}
	})
	move("has its call executed, the reply is lost", func(t *turn, r *request) {
		t.effect(i)
		r.flight = 0
	})
}

// calledMoves are those behind the call. A phased operation has one more step, which is done in one transaction with
// its recovery point.
func (s *search) calledMoves(move mover) {
	if s.policy != store.LostResume {
		s.completeMoves(move)
		return
	}
	move("records its recovery point", func(t *turn, r *request) {
		_, _, _ = t.apply(r.owns(store.EventCheckpoint))
	})
	move("confirms", func(t *turn, r *request) {
		ev := r.owns(store.EventCheckpoint)
		ev.Checkpoint.Point = pointConfirmed
		if _, _, err := t.apply(ev); err == nil {
			r.place, t.ledger.confirmed = confirmed, true
		}
	})
}

func (s *search) completeMoves(move mover) {
	move("completes", func(t *turn, r *request) { t.complete(r) })
	move("completes, the reply is lost", func(t *turn, r *request) {
		_, _, _ = t.apply(r.owns(store.EventComplete))
		r.place = settling
	})
}

// ownedMoves are those that an owner can make at any time. A heartbeat that does not get through is one that is not
// made; one whose reply is lost lengthens the lease in the store alone.
func (s *search) ownedMoves(move mover) {
	move("sends a heartbeat", func(t *turn, r *request) {
		if _, _, err := t.apply(r.owns(store.EventExtend)); err == nil {
			r.lease = int8(lease / tick)
		}
	})
	move("sends a heartbeat, the reply is lost", func(t *turn, r *request) {
		_, _, _ = t.apply(r.owns(store.EventExtend))
	})
	move("abandons", func(t *turn, r *request) {
		_, _, _ = t.apply(r.owns(store.EventAbandon))
		r.place = gone
	})
}

// complete stores the answer and sends what is stored: an owner that lost to a resolution does not send its own.
func (t *turn) complete(r *request) {
	_, _, err := t.apply(r.owns(store.EventComplete))
	r.place = gone
	var refused *store.FencedError
	switch {
	case err == nil, t.rules.ownAnswer:
		t.succeed(int64(r.attempt), made)
	case errors.As(err, &refused) && refused.Response != nil:
		t.succeed(refused.Current, answerOf(refused.Response))
	}
}

// release says that nothing was done, to the store and, if that takes it, to the client.
func (t *turn) release(r *request) {
	if _, _, err := t.apply(r.owns(store.EventRelease)); err == nil {
		t.deny(r.attempt)
	}
	r.place = gone
}

// reject says that nothing was done and nothing is kept: as if the request had never come.
func (t *turn) reject(r *request) {
	if _, _, err := t.apply(r.owns(store.EventReject)); err == nil {
		t.deny(r.attempt)
	}
	r.place = gone
}

// look and insert are the reservation of a broken store.
func (t *turn) look(i int) {
	r := &t.world.requests[i]
	rec, out, err := t.rules.step(t.stored(), t.reserve(i), now)
	if out.Decision == store.DecisionExecute {
		r.place = looked
		return
	}
	t.decided(r, &rec, out, err)
}

func (t *turn) insert(i int) {
	rec, out, err := t.applyTo(store.Record{}, t.reserve(i))
	t.decided(&t.world.requests[i], &rec, out, err)
}
