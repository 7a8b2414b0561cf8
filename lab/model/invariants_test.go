package model

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/onceward/onceward/store"
)

// breaches is a set of invariants of docs/reliability.md, by their numbers.
type breaches uint32

const (
	i1  breaches = 1 << 1
	i2  breaches = 1 << 2
	i3  breaches = 1 << 3
	i4  breaches = 1 << 4
	i5  breaches = 1 << 5
	i6  breaches = 1 << 6
	i7  breaches = 1 << 7
	i8  breaches = 1 << 8
	i12 breaches = 1 << 12
	i13 breaches = 1 << 13
	i15 breaches = 1 << 15
	i17 breaches = 1 << 17

	allInvariants = i1 | i2 | i3 | i4 | i5 | i6 | i7 | i8 | i12 | i13 | i15 | i17
	// outcomes are those that an operator who forces a bust was told may break.
	outcomes = i1 | i2 | i3 | i4 | i5 | i17
)

// String lists the invariants.
func (b breaches) String() string {
	var names []string
	for ; b != 0; b &= b - 1 {
		names = append(names, fmt.Sprintf("I%d", bits.TrailingZeros32(uint32(b))))
	}
	return strings.Join(names, ", ")
}

// violate notes a breach, unless an operator has asked for it.
func (t *turn) violate(b breaches) {
	if t.ledger.busted {
		b &^= outcomes
	}
	t.breach |= b
}

func (t *turn) require(b breaches, holds bool) {
	if !holds {
		t.violate(b)
	}
}

// judge holds one change of the stored record against the invariants that are about changes: I6, I7, I8 and I12. It
// counts the retention by itself, and does not believe the expiry that the record states.
func (t *turn) judge(before, after *store.Record, ev store.Event, out store.Transition) {
	if out.Decision == store.DecisionMismatch {
		t.require(i8, before.Fingerprint.Sum != ev.Reservation.Fingerprints[0].Sum)
	}
	if out.Effect == store.EffectNone {
		return
	}
	over := before.State.Settled() && t.ledger.left == 0
	busted := ev.Kind == store.EventBust
	rejected := ev.Kind == store.EventReject && (before.State == store.StateInProgress || before.State == store.StateRetryable)
	created := out.Origin == store.OriginCreated || out.Origin == store.OriginRecreated
	removed := created || out.Effect == store.EffectRemove || after.State == store.StateExpired

	if ev.Kind != store.EventReserve && ev.Attempt != 0 {
		t.require(i6, ev.Attempt == before.Attempt)
	}
	retained := ev.Kind == store.EventRetain
	if retained {
		t.require(i7, before.State.Settled() && !over && after.State == before.State && after.Attempt == before.Attempt)
		t.ledger.left = max(t.ledger.left, int8(ev.Lease/tick))
	}
	if before.State.Settled() && !removed && !retained {
		t.require(i7, before.State == store.StateRetryable && out.Decision == store.DecisionExecute)
	}
	if removed && before.State != store.StateNone && before.State != store.StateExpired {
		t.require(i12, over || busted && (before.State.Settled() || ev.Force) || rejected)
	}
	if out.Decision == store.DecisionExecute {
		t.judgeGrant(before, after, ev, created)
	}
	if ev.Kind == store.EventResolveStep {
		t.judgeToken(after)
	}
	if ev.Kind == store.EventReject {
		t.require(i5, t.ledger.effects == 0)
		// What was sent for the request may still arrive, under the downstream keys of the next one.
		t.require(i8, !t.ledger.doubted)
	}
	t.ledger.doubted = t.ledger.doubted || after.State == store.StateUnknown
	if removed && (over || busted || rejected) {
		t.endWindow(before)
		t.ledger.busted = t.ledger.busted || busted && !before.State.Settled()
	}
	if after.State.Settled() && !before.State.Settled() {
		t.ledger.left = int8(retention / tick)
	}
}

// judgeGrant holds a grant against I6 and I8: its token is new, and a record that counts is of the same request.
func (t *turn) judgeGrant(before, after *store.Record, ev store.Event, created bool) {
	t.judgeToken(after)
	t.require(i8, created || before.Fingerprint.Sum == ev.Reservation.Fingerprints[0].Sum)
}

// judgeToken holds a new token to being new.
func (t *turn) judgeToken(after *store.Record) {
	t.require(i6, after.Attempt > int64(t.ledger.top))
	t.ledger.top = max(t.ledger.top, int8(after.Attempt))
}

// endWindow forgets what belongs to a retention window that is rightly over. A provider that dedups must not: an owner
// that was resumed can be paused for longer than any retention, and call then.
func (t *turn) endWindow(before *store.Record) {
	t.ledger.known = t.dedups && t.ledger.happened()
	t.ledger.effects, t.ledger.by, t.ledger.answer, t.ledger.denied, t.ledger.confirmed = 0, 0, noneYet, 0, false
	t.ledger.doubted = false
	t.ledger.over = int8(before.Attempt)
}

// inspect holds the world after a move against the invariants that are about states: I1, I2, I5, I15, I17 and, where
// everything that could still act is gone, I13.
func (t *turn) inspect() {
	rec := t.stored()
	t.require(i1, t.ledger.effects <= 1)
	if t.ledger.answer != noneYet {
		t.require(i2, t.ledger.happened() && rec.State == store.StateCompleted)
	}
	if t.ledger.effects > 0 {
		t.require(i5, rec.State == store.StateInProgress || rec.State == store.StateUnknown || rec.State == store.StateCompleted)
	}
	if rec.State == store.StateCompleted && t.policy == store.LostResume {
		t.require(i15, t.ledger.confirmed)
	}
	t.require(i17, t.holders() <= 1)
	if t.watch&i13 != 0 && t.ownersGone() {
		t.require(i13, t.settles(rec))
	}
}

// holders counts the requests that take themselves for the owner.
func (t *turn) holders() (n int) {
	for i := range t.world.requests {
		if t.world.requests[i].holds() {
			n++
		}
	}
	return n
}

// ownersGone reports whether no owner that was granted the operation can still do anything.
func (t *turn) ownersGone() bool {
	for i := range t.world.requests {
		if t.world.requests[i].mayAct() {
			return false
		}
	}
	return true
}

// settles reports whether what is left behind by owners that are gone comes to rest: after the lease and one sweep,
// nothing is in progress but what the next reservation may resume; after one answer of the provider nothing is unknown
// but what was put before a person.
func (t *turn) settles(rec store.Record) bool {
	later := now.Add(lease + postpone)
	if rec.State == store.StateInProgress && rec.OnLost == store.LostResume {
		ev := t.reserve(0)
		ev.Reservation.Fingerprints[0] = rec.Fingerprint
		_, out, err := t.rules.step(rec, ev, later)
		return err == nil && out.Origin == store.OriginResumed
	}
	rec, _, err := t.rules.step(rec, store.Event{Kind: store.EventSweep}, later)
	if err != nil || rec.State == store.StateInProgress {
		return false
	}
	if rec.State != store.StateUnknown || rec.DeadLetter {
		return true
	}
	told := inquiry{verdict: notExecuted, attempt: int8(rec.Attempt)}
	if t.ledger.happened() {
		told.verdict = found
	}
	rec, _, err = t.rules.step(rec, t.event(told), later)
	if err == nil && rec.State == store.StateInProgress {
		return t.policy == store.LostResume // the next reservation resumes it
	}
	return err == nil && rec.State.Settled() && !later.Before(rec.SettledAt)
}
