package dynamodb

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// maxTurns is how often a call decides again because another call has changed the record in the meantime.
const maxTurns = 100

// outcome is the result of an event.
type outcome struct {
	store.Applied
	// beaten means that a write of this call found another write. If its reply was lost, it may have landed before
	// that.
	beaten bool
}

// sight is the value that is believed to be stored.
type sight struct {
	*value
	// guessed means that the value was not read in this call: it may only be overwritten, on condition that it is
	// right, and nothing is concluded from it.
	guessed bool
}

// change applies an event, first to the record as this process last wrote it for that attempt.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	guess := s.owned(store.Claim{ID: id, Attempt: event.Attempt})
	out, err := s.changeAt(ctx, placeOf(id), event, guess)
	return out.Applied, err
}

// changeAt applies an event: it decides by [store.Step], and stores the result if the record is still as it was seen. A
// right guess saves the read; for a wrong guess the service returns the stored item.
func (s *Store) changeAt(ctx context.Context, at place, event store.Event, seen sight) (outcome, error) {
	if err := s.ready(ctx); err != nil {
		return outcome{}, err
	}
	beaten := false
	for range maxTurns {
		if seen.value == nil {
			found, err := s.look(ctx, at)
			if err != nil {
				return outcome{Applied: store.Applied{Now: s.clock.now()}}, err
			}
			seen = sight{value: found}
		}
		if !at.known {
			at.id, at.known = seen.ID, seen.State != store.StateNone
		}
		now := s.clock.now()
		applied, err := s.decide(event, seen.value, now)
		out := outcome{applied, beaten}
		if err != nil || out.Effect == store.EffectNone {
			if seen.guessed {
				seen = sight{}
				continue
			}
			return out, err
		}
		next := following(seen.value, out.Record, out.Effect)
		next.leavesName = freesKey(event.Kind)
		instead, err := s.replace(ctx, &at, next, seen.write, now)
		switch {
		case err != nil:
			return outcome{Applied: store.Applied{Now: now}}, err
		case instead != nil && next.landed(instead):
			return out, nil // another attempt has already begun
		case instead == nil:
			s.changed(at.id, seen.value, next)
			return out, nil
		}
		if seen.guessed {
			s.held.drop(at.id, seen.value)
		}
		seen, beaten = sight{value: instead}, true
	}
	return outcome{}, unavailable(errContention)
}

// freesKey reports whether another attempt may begin directly after an event. The item keeps the name of such a write
// from then on: if the write's reply is lost, the name in what the next attempt has stored shows that the write landed.
func freesKey(kind store.EventKind) bool {
	switch kind {
	case store.EventRelease, store.EventReject, store.EventBust, store.EventResolveNotExecuted, store.EventResolveStep:
		return true
	default:
		return false
	}
}

// decide returns the step from the stored value. While a transaction holds a claim on the item, no other request
// executes.
func (s *Store) decide(event store.Event, before *value, now time.Time) (store.Applied, error) {
	if event.Kind.TakesToken() {
		event.Token = store.NewToken(now, max(before.Attempt, before.floor, before.claim.token))
	}
	if event.Completion != nil {
		event.Completion = fitting(event.Completion, &before.Record)
	}
	moment := s.moment(event.Kind, &before.Record, now)
	after, transition, err := store.Step(before.Record, event, moment)
	if transition.Decision == store.DecisionExecute && transition.Effect == store.EffectWrite &&
		before.claim.live(now.Add(-s.clock.margin())) {
		return store.Applied{Transition: store.Transition{Decision: store.DecisionInProgress}, Now: now}, nil
	}
	if err == nil && len(after.Data) > maxCarried && len(after.Data) > len(before.Data) {
		err = fmt.Errorf("%w, and an operation carries at most %d bytes, not %d", ErrTooLarge, maxCarried, len(after.Data))
		return store.Applied{Now: moment}, err
	}
	return store.Applied{Transition: transition, Record: after, Now: moment}, err
}

// moment returns the time at which an event is decided. The clocks of two nodes may differ: within the margin after the
// end of a lease, or after an expiry, reservations, sweeps and resolutions take it for not yet over.
func (s *Store) moment(kind store.EventKind, rec *store.Record, now time.Time) time.Time {
	switch kind {
	case store.EventReserve, store.EventSweep, store.EventResolveCompleted, store.EventResolveNotExecuted,
		store.EventResolveStep:
	default:
		return now
	}
	if rec.State != store.StateInProgress && !rec.State.Settled() {
		return now
	}
	if due := rec.Due(); !now.Before(due) && now.Before(due.Add(s.clock.margin())) {
		return due.Add(-store.ClockStep)
	}
	return now
}

// otherFields is the room for the fields of an item that cannot be large.
const otherFields = 8 << 10

// maxCarried is how much an operation may carry. It leaves room for the outcome of the operation and its reason: an
// operation without room for an outcome would be in progress permanently.
const maxCarried = maxItem - 2*otherFields

// fitting returns a completion that can be stored. An answer that does not fit into an item is kept without its body,
// like an answer over the limit of its route: it is not replayed, and the operation is not executed again. A header
// that does not fit either is left out too. The result depends on nothing that the completion changes, so that a
// repeated completion has the same result.
func fitting(done *store.Completion, rec *store.Record) *store.Completion {
	response := &done.Response
	size := otherFields + len(rec.Data)
	for i := range response.Header {
		size += len(response.Header[i].Name) + len(response.Header[i].Value)
	}
	if size+len(response.Body) <= maxItem {
		return done
	}
	small := *done
	small.Response.Body, small.Response.NotStored = nil, true
	if size > maxItem || response.IsSealed() && !response.NotStored {
		small.Response.Header = nil // a sealed header is left out together with the body
	}
	return &small
}

// following returns the value to store after a step. Every write except the claim's own drops a claim: its transaction
// then cannot commit, and decides again.
func following(before *value, after store.Record, effect store.Effect) *value {
	next := &value{Record: after, dueAt: before.dueAt}
	if effect == store.EffectRemove {
		next.Record, next.floor = store.Record{}, max(before.Attempt, before.floor)
	}
	if before.State != after.State || before.Attempt != after.Attempt {
		next.dueAt = 0
	}
	if effect != store.EffectRemove {
		next.commit = before.commit
	}
	return next
}

// replace stores a value over the value that a write has left. If that value has changed, it returns the current one.
// It returns nil if the new value is stored, also if an earlier try of the same request has stored it.
func (s *Store) replace(ctx context.Context, at *place, next *value, over string, now time.Time) (*value, error) {
	next.write = newWrite(next.State)
	if next.leavesName {
		next.commit = next.write
	}
	it := s.encode(at, next, now)
	if size := sizeOf(it); size > maxItem {
		return nil, fmt.Errorf("%w: with what the operation carries and its answer it would be %d bytes", ErrTooLarge, size)
	}
	found, err := s.putOver(ctx, it, over)
	if err != nil || found == nil {
		return nil, err
	}
	instead, err := decode(at, found)
	if err == nil && instead.write == next.write {
		return nil, nil
	}
	return instead, err
}

// changed records the effects of a write: it wakes the waiters, and lets the owner's next write skip the read.
func (s *Store) changed(id store.ID, before, after *value) {
	s.hold(id, after)
	if after.State != store.StateInProgress || after.Attempt != before.Attempt {
		s.watcher.wake(id)
	}
	if after.State.Settled() {
		s.recent.add(id)
	}
}

// look returns the stored value.
func (s *Store) look(ctx context.Context, at place) (*value, error) {
	found, err := s.get(ctx, at.key())
	if err != nil {
		return nil, err
	}
	return decode(&at, found)
}
