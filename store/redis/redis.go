package redis

import (
	"context"
	"log/slog"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// Store is a [store.Store] on Redis. It has every capability of package store but transactions, and removes by itself
// what has expired.
type Store struct {
	client rueidis.Client
	names  *names
	log    *slog.Logger
}

// Close ends the calls under way with an error, and closes the connections.
func (s *Store) Close() error {
	s.client.Close()
	return nil
}

// epoch is the time that a record is made at before a script adds the server's.
var epoch = time.UnixMicro(0)

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r}
	fresh, transition, err := store.Step(store.Record{}, event, epoch)
	if err != nil {
		return store.Verdict{}, err
	}
	at := s.names.place(r.ID)
	var seen *reading
	if transition.Effect == store.EffectWrite {
		fresh.Attempt = 0
		made, found, err := s.create(ctx, at, &value{Record: fresh}, r.Lease)
		if err != nil {
			return store.Verdict{}, err
		}
		if found == nil {
			event.Token = made.UnixMicro()
			rec, transition, err := store.Step(store.Record{}, event, made)
			return store.Verdict{Decision: transition.Decision, Origin: transition.Origin, Record: rec, Now: made}, err
		}
		seen = found
	}
	out, err := s.apply(ctx, at, event, seen)
	return store.Verdict{Decision: out.Decision, Origin: out.Origin, Record: out.record, Now: out.now}, err
}

// create makes a record if there is none, in one round trip, and returns when that was or what is there.
func (s *Store) create(ctx context.Context, at place, fresh *value, lease time.Duration) (time.Time, *reading, error) {
	message, err := s.run(ctx, reserveScript, []string{at.key, at.index[indexOf(&fresh.Record)]},
		rueidis.BinaryString(fresh.appendTo(nil)), number(lease/store.ClockStep))
	if err != nil {
		return time.Time{}, nil, err
	}
	if made, err := message.ToInt64(); err == nil {
		return time.UnixMicro(made).UTC(), nil, nil
	}
	found, err := readingOf(&message)
	return time.Time{}, found, err
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	at := s.names.place(c.ID)
	var seen *reading
	if lease >= store.ClockStep {
		message, err := s.run(ctx, extendScript, []string{at.key, at.index[indexSwept], at.index[indexResumed]},
			stamp(store.StateInProgress, c.Attempt), number(lease/store.ClockStep))
		if err != nil || message.IsInt64() {
			return err
		}
		if seen, err = readingOf(&message); err != nil {
			return err
		}
	}
	_, err := s.apply(ctx, at, store.Event{Kind: store.EventExtend, Attempt: c.Attempt, Lease: lease}, seen)
	return err
}

// stamp is how a stored record begins: its format, state and attempt.
func stamp(state store.State, attempt int64) string {
	v := value{Record: store.Record{State: state, Attempt: attempt}}
	return string(v.appendTo(nil)[:atNonce])
}

// Checkpoint implements [store.Store].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p})
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	return s.settle(ctx, store.Event{Kind: store.EventComplete, Attempt: c.Attempt, Completion: done}, c)
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	_, err := s.settle(ctx, store.Event{Kind: store.EventRelease, Attempt: c.Attempt, Reason: reason}, c)
	return err
}

// settle settles a record that its owner holds in one round trip, if what was stored before needs no more than a tail.
func (s *Store) settle(ctx context.Context, event store.Event, c store.Claim) (time.Time, error) {
	// The step on a record that holds nothing says what is to be added to one that does.
	held := store.Record{Version: store.RecordVersion, State: store.StateInProgress, Attempt: c.Attempt}
	at := s.names.place(c.ID)
	settled, _, err := store.Step(held, event, epoch)
	if err != nil {
		out, err := s.apply(ctx, at, event, nil) // which error it is depends on the record
		return out.record.ExpiresAt, err
	}
	unfit := flagTail
	if event.Kind == store.EventRelease {
		unfit |= flagData
	}
	after := value{Record: settled}
	message, err := s.run(ctx, settleScript, []string{at.key, at.index[indexSwept], at.index[indexResumed]},
		stamp(store.StateInProgress, c.Attempt), stamp(settled.State, c.Attempt),
		rueidis.BinaryString(after.appendTail(nil)), number(settled.Retention/store.ClockStep), number(int(unfit)),
		number(grace.Milliseconds()))
	if err != nil {
		return time.Time{}, err
	}
	if expires, err := message.ToInt64(); err == nil {
		return time.UnixMicro(expires).UTC(), nil
	}
	seen, err := readingOf(&message)
	if err != nil {
		return time.Time{}, err
	}
	out, err := s.apply(ctx, at, event, seen)
	return out.record.ExpiresAt, err
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventAbandon, Attempt: c.Attempt, Reason: reason})
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return s.write(ctx, c.ID, store.Event{Kind: store.EventReject, Attempt: c.Attempt})
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, unavailable(err)
	}
	stored, err := s.client.Do(ctx, s.client.B().Get().Key(s.names.place(id).key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return store.Record{}, store.ErrNotFound
	}
	if err != nil {
		return store.Record{}, unavailable(err)
	}
	v, err := decode(id, stored)
	if err == nil && v.State == store.StateNone {
		err = store.ErrNotFound
	}
	return v.Record, err
}

// write applies an event of which only the error is needed.
func (s *Store) write(ctx context.Context, id store.ID, event store.Event) error {
	_, err := s.apply(ctx, s.names.place(id), event, nil)
	return err
}

