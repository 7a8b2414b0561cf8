package model

import (
	"github.com/onceward/onceward/store"
)

// turn is one move in the making: the world as it becomes, and what was breached on the way.
type turn struct {
	*search
	world
	breach breaches
}

// apply is the store: it does one event to the stored record in one atomic step.
func (t *turn) apply(ev store.Event) (store.Record, store.Transition, error) {
	return t.applyTo(t.stored(), ev)
}

// applyTo does the same to what the store believes to be there, which is the truth in every store but a broken one.
func (t *turn) applyTo(believed store.Record, ev store.Event) (store.Record, store.Transition, error) {
	after, out, err := t.rules.step(believed, ev, now)
	t.cover(&believed, &after, ev, out, err)
	before := t.stored()
	t.judge(&before, &after, ev, out)
	switch out.Effect {
	case store.EffectWrite:
		t.row = t.rows.id(after)
	case store.EffectRemove:
		t.row = 0
		if !t.rules.forgetfulStore {
			t.floor = max(t.floor, int8(before.Attempt))
		}
	}
	return after, out, err
}

func (t *turn) stored() store.Record { return t.rows.record(t.row) }

// reserve is the reservation of request i. Its nonce is its own, so that it can be repeated.
func (t *turn) reserve(i int) store.Event {
	payload := t.scenario.requests[i].payload
	return store.Event{
		Kind: store.EventReserve,
		Reservation: &store.Reservation{
			Fingerprints: []store.Fingerprint{{Sum: [32]byte{payload}}},
			OnLost:       t.policy,
			Nonce:        store.Nonce{byte(i) + 1},
			Lease:        lease,
			Retention:    retention,
		},
		Token: int64(t.floor) + 1,
	}
}

// owns is a write by the owner that serves a request.
func (r *request) owns(kind store.EventKind) store.Event {
	ev := store.Event{Kind: kind, Attempt: int64(r.attempt)}
	switch kind {
	case store.EventExtend:
		ev.Lease = lease
	case store.EventCheckpoint:
		ev.Checkpoint = store.Checkpoint{Point: pointCalled}
	case store.EventComplete:
		ev.Completion = &store.Completion{Response: made.response()}
	}
	return ev
}

// effect is the provider doing the work for an attempt.
func (t *turn) effect(i int) {
	if t.dedups && t.ledger.happened() {
		return
	}
	t.ledger.effects = min(t.ledger.effects+1, 2)
	t.ledger.by = t.world.requests[i].attempt
	t.require(i4, t.ledger.denied>>t.ledger.by&1 == 0)
	rec := t.stored()
	t.require(i8, rec.State == store.StateNone || rec.Fingerprint.Sum[0] == t.scenario.requests[i].payload)
}

// succeed is a definitive success on its way to a client. One that comes when its window is over binds no client any
// more.
func (t *turn) succeed(attempt int64, a answer) {
	if attempt <= int64(t.ledger.over) {
		return
	}
	if t.ledger.answer != noneYet && t.ledger.answer != a {
		t.violate(i3)
	}
	t.ledger.answer = a
}

// deny is a definitive "not executed" about the operation.
func (t *turn) deny(attempt int8) {
	t.require(i4, t.ledger.effects == 0)
	t.ledger.denied |= 1 << attempt
}

// denyAttempt is the same about one attempt. Another may have got through.
func (t *turn) denyAttempt(attempt int8) {
	t.require(i4, t.ledger.effects == 0 || t.ledger.by != attempt)
	t.ledger.denied |= 1 << attempt
}

// transition is one row of the table of docs/state-machine.md, as it was taken.
type transition struct {
	from     store.State
	over     bool // the lease of what is in progress, or the retention of what is settled
	event    store.EventKind
	decision store.Decision
	to       store.State
	fenced   bool
}

// cover counts the transitions, so that a test can tell which rows the search has walked.
func (t *turn) cover(before, after *store.Record, ev store.Event, out store.Transition, err error) {
	due := before.Due()
	tr := transition{
		from: before.State, over: before.State != store.StateUnknown && !due.IsZero() && !now.Before(due),
		event: ev.Kind, decision: out.Decision, to: after.State, fenced: err != nil,
	}
	if out.Effect == store.EffectRemove {
		tr.to = store.StateNone
	}
	t.result.moved[tr]++
}
