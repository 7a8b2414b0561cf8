package redis

import (
	"context"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// Store is a [store.Store] on Redis. It has every capability of package store except transactions, and its server
// removes expired records. The token of a record that was removed stays known for a retention.
type Store struct {
	store.Methods
	sender *sender
	names  *names
	recent *recent
	log    *slog.Logger

	watcher    *watcher
	inspection inspection
}

// Close waits for the calls in progress, and closes the connections.
func (s *Store) Close() error {
	s.watcher.stop()
	s.sender.close()
	return nil
}

// epoch is the time at which a record is made before a script adds the server's time.
var epoch = time.UnixMicro(0)

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r}
	at := s.names.place(r.ID)
	if s.recent.has(at.key) {
		seen, err := s.look(ctx, at)
		if err != nil || seen.stored != "" {
			return s.decide(ctx, at, event, seen, err)
		}
	}
	fresh, transition, err := store.Step(store.Record{}, event, epoch)
	switch {
	case err != nil:
		return store.Verdict{}, err
	case transition.Effect != store.EffectWrite:
		return s.decide(ctx, at, event, nil, nil) // the reservation must not make a record
	}
	draw := drawToken()
	made, seen, err := s.create(ctx, at, fresh, r.Lease, draw)
	if err != nil || seen != nil {
		return s.decide(ctx, at, event, seen, err)
	}
	event.Token = made.UnixMicro() + draw
	rec, transition, err := store.Step(store.Record{}, event, made)
	return store.Verdict{Decision: transition.Decision, Origin: transition.Origin, Record: rec, Now: made}, err
}

// decide answers a reservation from the stored record.
func (s *Store) decide(ctx context.Context, at place, event store.Event, seen *reading, err error) (
	store.Verdict, error,
) {
	if err != nil {
		return store.Verdict{}, err
	}
	out, err := s.changeAt(ctx, at, event, seen)
	if out.Effect == store.EffectNone && out.Record.State.Settled() {
		s.recent.add(at.key)
	}
	return out.Verdict(), err
}

// create makes a record if there is none, in one round trip, and returns when it was made, or else the existing record.
func (s *Store) create(ctx context.Context, at place, fresh store.Record, lease time.Duration, draw int64) (
	time.Time, *reading, error,
) {
	v := value{Record: fresh}
	stored := rueidis.BinaryString(v.appendTo(make([]byte, 0, 256)))
	c := &call{kind: kindWrite, keys: at.leased(), args: []string{
		opMake, number(lease / store.ClockStep), number(draw), stored[atNonce:],
	}}
	if err := s.sender.do(ctx, c); err != nil {
		return time.Time{}, nil, err
	}
	now := time.UnixMicro(c.now).UTC()
	if c.reply.IsInt64() {
		return now, nil, nil
	}
	found, err := storedAt(c.now, &c.reply)
	return time.Time{}, found, err
}

// look returns the stored value, at the lowest cost.
func (s *Store) look(ctx context.Context, at place) (*reading, error) {
	c := &call{kind: kindLook, keys: []string{at.key}}
	if err := s.sender.do(ctx, c); err != nil {
		return nil, err
	}
	return storedAt(c.now, &c.reply)
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	at := s.names.place(c.ID)
	var seen *reading
	if lease >= store.ClockStep {
		message, err := s.run(ctx, extendScript, at.leased(),
			stamp(c.Attempt), number(lease/store.ClockStep))
		if err != nil || message.IsInt64() {
			return err
		}
		if seen, err = readingOf(message); err != nil {
			return err
		}
	}
	_, err := s.changeAt(ctx, at, store.Event{Kind: store.EventExtend, Attempt: c.Attempt, Lease: lease}, seen)
	return err
}

// stamp returns the beginning of a record that is in progress at an attempt.
func stamp(attempt int64) string {
	var b [atSettled]byte
	b[0], b[1] = format, byte(store.StateInProgress)
	binary.BigEndian.PutUint64(b[atAttempt:], uint64(attempt))
	return string(b[:])
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

// settle settles a record that its owner holds in one round trip, if it only has to add a tail to the stored record. In
// a cluster this does not work for a record with a provider's id, whose index is in another slot.
func (s *Store) settle(ctx context.Context, event store.Event, c store.Claim) (time.Time, error) {
	// The step on an empty record returns what is to be added to a stored one.
	held := store.Record{Version: store.RecordVersion, State: store.StateInProgress, Attempt: c.Attempt}
	at := s.names.place(c.ID)
	settled, _, err := store.Step(held, event, epoch)
	if err != nil || settled.ProviderID != "" && s.names.cluster {
		// The error depends on the record, and so does for how long it is found by its provider's id.
		out, err := s.changeAt(ctx, at, event, nil)
		if err == nil {
			s.recent.add(at.key)
		}
		return out.Record.ExpiresAt, err
	}
	op, after, keys := opComplete, value{Record: settled}, at.leased()
	switch {
	case event.Kind == store.EventRelease:
		op = opRelease
	case settled.ProviderID != "":
		op, keys = opIdentify, append(keys, s.names.providerKey(settled.ProviderID))
	}
	call := &call{kind: kindWrite, keys: keys, args: []string{
		op, number(settled.Retention / store.ClockStep), stamp(c.Attempt)[atAttempt:],
		rueidis.BinaryString(after.appendTail(nil)),
	}}
	if err := s.sender.do(ctx, call); err != nil {
		return time.Time{}, err
	}
	s.recent.add(at.key)
	if expires, err := call.reply.ToInt64(); err == nil {
		return time.UnixMicro(expires).UTC(), nil
	}
	seen, err := storedAt(call.now, &call.reply)
	if err != nil {
		return time.Time{}, err
	}
	out, err := s.changeAt(ctx, at, event, seen)
	return out.Record.ExpiresAt, err
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	at := s.names.place(id)
	found, err := s.look(ctx, at)
	if err != nil {
		return store.Record{}, err
	}
	v, err := decode(at, found.stored)
	if err == nil && v.State == store.StateNone {
		err = store.ErrNotFound
	}
	return v.Record, err
}
