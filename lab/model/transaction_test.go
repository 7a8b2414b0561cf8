package model

import (
	"github.com/onceward/onceward/store"
)

// idleTime is the ticks after which the database rolls a transaction back. It must not be longer than the retention:
// over a record that came and went in the meantime, the transaction would settle with a token smaller than one already
// used.
const idleTime = int8(retention / tick)

// transactionMoves are the moves of a request in transactional mode: the claim, the work and the answer are one
// transaction, under a lock on the key that ends with it. The work is the effect; nothing leaves the database.
func (s *search) transactionMoves(w world, i int) {
	move := func(what string, f func(t *turn, r *request)) {
		s.try(w, action{requestNames[i], what}, func(t *turn) { f(t, &t.world.requests[i]) })
	}
	r := w.requests[i]
	switch r.place {
	case unsent:
		if s.isTurnOf(w, i) {
			move("begins", func(t *turn, _ *request) { t.begin(i) })
		}
	case working:
		s.workingMoves(r, move)
	case stranded:
		move("is noticed and rolled back", func(t *turn, r *request) { t.leave(r, gone) })
	case committing:
		s.commitMoves(i, move, committed, asking)
		move("crashes during COMMIT", func(_ *turn, r *request) { r.place = orphaned })
	case orphaned:
		s.commitMoves(i, move, gone, gone)
	case committed:
		move("hears of its COMMIT", func(t *turn, r *request) {
			t.succeed(int64(r.attempt), made)
			r.place = gone
		})
		move("does not hear of its COMMIT", func(_ *turn, r *request) { r.place = asking })
	case asking:
		s.askingMoves(w, i, move)
	case forgetting:
		move("forgets what was released", func(t *turn, r *request) {
			_, _, _ = t.apply(store.Event{Kind: store.EventReject, Attempt: t.rows.record(r.seen).Attempt})
			r.place, r.seen = gone, 0
		})
	}
}

// begin takes the lock and looks up. Without the lock it still looks, and replays what is there.
func (t *turn) begin(i int) {
	r := &t.world.requests[i]
	rec, out, err := t.rules.step(t.stored(), t.reserve(i), now)
	granted := out.Decision == store.DecisionExecute
	switch {
	case granted && t.lock == 0:
		*r = request{place: working, attempt: int8(rec.Attempt), flight: idleTime, seen: t.row}
		t.lock = int8(i) + 1
		// Tokens come from a sequence, which a rollback does not set back.
		t.floor = r.attempt
		return
	case granted:
		out.Decision = store.DecisionInProgress
	case t.lock == 0:
		rec, out, err = t.apply(t.reserve(i))
	}
	t.decided(r, &rec, out, err)
}

// timeOut rolls back the transactions that took too long.
func (t *turn) timeOut(r *request) {
	switch r.place {
	case working, stranded, orphaned:
		t.leave(r, gone)
	case committing:
		t.leave(r, asking)
	}
}

func (s *search) workingMoves(r request, move mover) {
	if s.rows.record(r.seen).State == store.StateRetryable {
		move("is rejected and rolls back", func(t *turn, r *request) {
			t.denyAttempt(r.attempt)
			seen := r.seen
			t.leave(r, forgetting)
			r.seen = seen
		})
	}
	move("sends COMMIT", func(_ *turn, r *request) { r.place = committing })
	move("fails and rolls back", func(t *turn, r *request) {
		t.denyAttempt(r.attempt)
		t.leave(r, gone)
	})
	move("crashes in its transaction", func(_ *turn, r *request) { r.place = stranded })
}

// leave ends the transaction and with it the lock.
func (t *turn) leave(r *request, to place) {
	r.place, r.seen, r.flight = to, 0, 0
	t.lock = 0
}

// commitMoves are those of the database that was sent COMMIT.
func (s *search) commitMoves(i int, move mover, landed, lost place) {
	move("has its COMMIT landed", func(t *turn, _ *request) { t.land(i, landed) })
	move("has its COMMIT lost", func(t *turn, r *request) { t.leave(r, lost) })
}

// land makes the work and the record visible at once, if the record is still what the look-up saw: settling writes
// exactly one row over that, and anything else stops the commit. The request then decides again.
func (t *turn) land(i int, to place) {
	r := &t.world.requests[i]
	if t.row != r.seen && !t.rules.blindCommit {
		again := unsent
		if to == gone {
			again = gone
		}
		t.leave(r, again)
		return
	}
	claim := t.reserve(i)
	claim.Token = int64(r.attempt)
	_, _, _ = t.applyTo(t.rows.record(r.seen), claim)
	t.effect(i)
	_, _, _ = t.apply(r.owns(store.EventComplete))
	t.leave(r, to)
}

// askingMoves are those of an owner that did not hear of its COMMIT. It asks under the lock, so that a COMMIT still on
// its way cannot land behind its back.
func (s *search) askingMoves(w world, i int, move mover) {
	if w.lock != 0 {
		return
	}
	if s.rules.blindCommit {
		move("runs its transaction again", func(t *turn, r *request) {
			r.place, r.flight, t.lock = working, idleTime, int8(i)+1
		})
		return
	}
	move("asks the store", func(t *turn, r *request) {
		rec := t.stored()
		if rec.Attempt == int64(r.attempt) && rec.State == store.StateCompleted {
			t.succeed(rec.Attempt, answerOf(&rec.Response))
		} else {
			t.denyAttempt(r.attempt)
		}
		r.place = gone
	})
}
