package model

import (
	"time"

	"github.com/onceward/onceward/store"
)

// This file holds the mistakes that the search must find: a checker that finds nothing proves nothing until it is
// seen to find what is there.

// mutant is a scenario with one mistake in it, and invariants that it breaks. The search looks for each of them alone.
type mutant struct {
	scenario
	breaks []breaches
}

var mutants = []mutant{
	{scenario{
		name: "no fence: the attempt is not compared", requests: twice, attempts: 3,
		rules: rules{step: unfenced},
	}, []breaches{i4, i5, i6}},
	{scenario{
		name: "no fence: an owner that was resumed over writes too", requests: twice, attempts: 3,
		policy: store.LostResume, dedups: true, rules: rules{step: unfenced},
	}, []breaches{i4, i5, i6}},
	{scenario{
		name: "no recorded intent: a lost lease is retried", requests: twice, attempts: 3,
		rules: rules{step: unrecorded},
	}, []breaches{i1}},
	{scenario{
		name: "a repeated grant counts from its repetition", requests: twice, attempts: 3,
		policy: store.LostResume, dedups: true, rules: rules{freshLease: true},
	}, []breaches{i17}},
	{scenario{
		name: "early reap: what is not settled", requests: twice, attempts: 3,
		rules: rules{step: reapsUnsettled},
	}, []breaches{i1, i5, i12}},
	{scenario{
		name: "early reap: before the expiry", requests: twice, attempts: 3,
		rules: rules{step: reapsUnexpired},
	}, []breaches{i1, i2, i5, i12}},
	{scenario{
		name: "COMMIT retried blindly", requests: transactions, attempts: 3,
		rules: rules{blindCommit: true},
	}, []breaches{i1}},
	{scenario{
		name: "check-then-insert", requests: andOther, attempts: 3,
		rules: rules{checkThenInsert: true},
	}, []breaches{i1, i6, i8, i12}},
	{scenario{
		name: "the tokens of removed records are forgotten", requests: twice, attempts: 3,
		rules: rules{forgetfulStore: true},
	}, []breaches{i6}},
	{scenario{
		name: "not found taken for not executed", requests: twice, attempts: 3,
		rules: rules{hastyReconciler: true},
	}, []breaches{i1, i4, i5}},
	{scenario{
		name: "an owner that lost to a resolution sends its own answer", requests: twice, attempts: 3,
		rules: rules{ownAnswer: true},
	}, []breaches{i3}},
	{scenario{
		name: "a resolution overwrites an answer", requests: twice, attempts: 3,
		rules: rules{step: overwritten},
	}, []breaches{i3, i7}},
	{scenario{
		name: "a requeue brings back what is settled", requests: twice, attempts: 3, bust: true,
		rules: rules{step: revived},
	}, []breaches{i2, i7}},
	{scenario{
		name: "a record that is kept for longer is kept for less", requests: twice, attempts: 3, bust: true,
		rules: rules{step: shortened},
	}, []breaches{i2, i12}},
	{scenario{
		name: "a record that is kept for longer comes back", requests: twice, attempts: 3, bust: true,
		rules: rules{step: retainedLate},
	}, []breaches{i7}},
	{scenario{
		name: "the fingerprint is not compared", requests: andOther, attempts: 3,
		rules: rules{step: mistaken},
	}, []breaches{i8}},
	{scenario{
		name: "a reject is not fenced", requests: twice, attempts: 3,
		rules: rules{step: rejectsAll},
	}, []breaches{i5, i6, i12}},
	{scenario{
		name: "a resolution hides that the record was unknown", requests: twice, attempts: 3,
		rules: rules{step: hidesDoubt},
	}, []breaches{i8}},
	{scenario{
		name: "a settled step settles the operation", requests: twice, attempts: 3,
		policy: store.LostResume, dedups: true, rules: rules{stepIsOperation: true},
	}, []breaches{i15}},
	{scenario{
		name: "a resolved step keeps its token", requests: twice, attempts: 3,
		policy: store.LostResume, dedups: true, rules: rules{step: sameToken},
	}, []breaches{i6}},
	{scenario{
		name: "nobody sweeps", requests: twice, attempts: 3,
		rules: rules{step: unswept},
	}, []breaches{i13}},
}

// unfenced is a store that does not compare tokens.
func unfenced(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Attempt != 0 {
		ev.Attempt = rec.Attempt
	}
	return store.Step(rec, ev, now)
}

// unrecorded is a store that takes a lost lease for the proof that nothing was done.
func unrecorded(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	lost := rec.State == store.StateInProgress && !now.Before(rec.LeaseUntil)
	if lost && (ev.Kind == store.EventReserve || ev.Kind == store.EventSweep) {
		release := store.Event{Kind: store.EventRelease, Attempt: rec.Attempt}
		released, out, err := store.Step(rec, release, now)
		if ev.Kind == store.EventSweep {
			return released, out, err
		}
		rec = released
	}
	return store.Step(rec, ev, now)
}

// reapsUnsettled is a reaper that goes by time alone.
func reapsUnsettled(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventReap && rec.State != store.StateNone && !now.Before(rec.Due()) {
		return rec, store.Transition{Effect: store.EffectRemove}, nil
	}
	return store.Step(rec, ev, now)
}

// reapsUnexpired is a reaper that does not look at the expiry.
func reapsUnexpired(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventReap && rec.State.Settled() {
		return rec, store.Transition{Effect: store.EffectRemove}, nil
	}
	return store.Step(rec, ev, now)
}

// overwritten is a store whose resolutions do not look at the state.
func overwritten(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventResolveCompleted && rec.State == store.StateCompleted && rec.Attempt == ev.Attempt {
		rec.State = store.StateUnknown
	}
	return store.Step(rec, ev, now)
}

// revived is a store whose operator has anything looked at again.
func revived(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventRequeue && rec.State == store.StateCompleted && rec.Attempt == ev.Attempt {
		rec.State = store.StateUnknown
	}
	return store.Step(rec, ev, now)
}

// shortened is a store whose operator sets the expiry of what is settled, also to sooner.
func shortened(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventRetain && rec.State.Settled() {
		rec.ExpiresAt = now.Add(ev.Lease)
		return rec, store.Transition{Effect: store.EffectWrite}, nil
	}
	return store.Step(rec, ev, now)
}

// retainedLate is a store whose operator keeps also what has expired.
func retainedLate(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventRetain && rec.State.Settled() && !now.Before(rec.ExpiresAt) {
		rec.ExpiresAt = now.Add(ev.Lease)
		return rec, store.Transition{Effect: store.EffectWrite}, nil
	}
	return store.Step(rec, ev, now)
}

// mistaken is a store that takes every request under a key for the same.
func mistaken(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	stored := rec.Fingerprint
	if ev.Kind == store.EventReserve && rec.State != store.StateNone {
		rec.Fingerprint = ev.Reservation.Fingerprints[0]
	}
	after, out, err := store.Step(rec, ev, now)
	if out.Origin == store.OriginRetried || out.Effect == store.EffectNone {
		after.Fingerprint = stored
	}
	return after, out, err
}

// rejectsAll is a store in which a reject removes whatever is there.
func rejectsAll(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventReject && rec.State != store.StateNone {
		ev.Attempt, rec.State = rec.Attempt, store.StateInProgress
	}
	return store.Step(rec, ev, now)
}

// hidesDoubt is a store that keeps nothing of the time when a record was unknown.
func hidesDoubt(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	after, out, err := store.Step(rec, ev, now)
	if ev.Kind == store.EventResolveNotExecuted {
		after.ReconcileError = ""
	}
	return after, out, err
}

// sameToken is a store that lets an operation go on under the token of the attempt that was resolved.
func sameToken(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	after, out, err := store.Step(rec, ev, now)
	if ev.Kind == store.EventResolveStep {
		after.Attempt = rec.Attempt
	}
	return after, out, err
}

// unswept is a store without a sweeper.
func unswept(rec store.Record, ev store.Event, now time.Time) (store.Record, store.Transition, error) {
	if ev.Kind == store.EventSweep {
		return rec, store.Transition{}, nil
	}
	return store.Step(rec, ev, now)
}
