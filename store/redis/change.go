package redis

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// grace is how long the server keeps a record past its expiry. A reservation in that time finds the record expired by
// the server's clock, and recreates it; the token of the old record is still known then.
const grace = time.Minute

const (
	// freshness is how old a reading may be when its result is stored, because its times count from the reading. The
	// wait for the acknowledgements of earlier writes is added.
	freshness = time.Second
	// maxStale is how often a call decides again because its reading was too old.
	maxStale = 3
)

// maxDraw bounds the random part of a token, in microseconds. It is less than [grace], so that a recreated record has a
// larger token than the record that the server removed. It also leaves room below 2^53, up to which the numbers of Lua
// are exact.
const maxDraw = 1 << 20

// drawToken returns the random part of a token. An owner whose grant was lost in a fail-over, and the next one, would
// otherwise have the same token if the clocks agree, or if both are behind the floor.
func drawToken() int64 { return store.TokenDraw() % maxDraw }

// newToken returns a token larger than the floor: the clock, or what follows the floor, and a random part.
func newToken(now time.Time, floor int64) int64 {
	draw := drawToken()
	if token := now.UnixMicro() + draw; token > floor {
		return token
	}
	return floor + 1 + draw
}

var errStale = errors.New("the server answers so late that the record was read too long ago for a decision")

// change applies an event that begins with a reading.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (store.Applied, error) {
	return s.changeAt(ctx, s.names.place(id), event, nil)
}

// changeAt applies any event to a record: it reads, decides by [store.Step], and stores the result if the record is
// still the same. A reading of an earlier script replaces the first read.
func (s *Store) changeAt(ctx context.Context, at place, event store.Event, seen *reading) (store.Applied, error) {
	for stale := 0; stale < maxStale; {
		if seen == nil {
			var err error
			if seen, err = s.look(ctx, at); err != nil {
				return store.Applied{}, err
			}
		}
		before, err := decode(at, seen.stored)
		if err != nil {
			return store.Applied{Now: seen.now}, err
		}
		if event.Kind.TakesToken() {
			event.Token = newToken(seen.now, max(before.floor, before.Attempt))
		}
		after, transition, err := store.Step(before.Record, event, seen.now)
		out := store.Applied{Transition: transition, Record: after, Now: seen.now}
		if err != nil || transition.Effect == store.EffectNone && !s.confirms(event, transition) {
			return out, err
		}
		stored := next(before, after, transition.Effect)
		if err := s.noteProvider(ctx, at, seen.now, &stored); err != nil {
			return store.Applied{}, err
		}
		read := seen.stored
		if seen, err = s.swap(ctx, at, seen, before, stored); seen == nil {
			if err == nil {
				s.dropProvider(ctx, at, &before, &stored)
			}
			return out, err
		}
		if seen.stored == read {
			seen, stale = nil, stale+1 // this reading has waited for acknowledgements too
		}
	}
	return store.Applied{}, unavailable(errStale)
}

// confirms reports whether a change that was already made, by a call whose reply was lost or which missed an
// acknowledgement, is written again unchanged: the replicas have to acknowledge it before the caller gets a success.
func (s *Store) confirms(event store.Event, found store.Transition) bool {
	switch event.Kind {
	case store.EventReserve:
		return s.sender.acks.wanted() && found.Decision == store.DecisionExecute
	case store.EventSweep:
		return false
	default:
		return s.sender.acks.wanted()
	}
}

// next returns the value to store after a step.
func next(before value, after store.Record, effect store.Effect) value {
	v := value{Record: after, revision: before.revision + 1}
	if effect == store.EffectRemove {
		v.Record = store.Record{Retention: before.Retention, ExpiresAt: before.ExpiresAt}
		v.floor = before.Attempt
	}
	v.awaited = before.awaited && !ended(&before.Record, &v.Record)
	return v
}

// ended reports whether an attempt is no longer in progress.
func ended(before, after *store.Record) bool {
	return after.State != store.StateInProgress || after.Attempt != before.Attempt
}

// swap stores the next value if the record is still as it was read. Otherwise it returns the current value.
func (s *Store) swap(ctx context.Context, at place, seen *reading, before, after value) (*reading, error) {
	publish := "0"
	if before.awaited && !after.awaited {
		publish = "1"
	}
	due := int64(0)
	to := indexOf(&after.Record)
	if to != indexNone {
		due = after.Due().UnixMicro()
	}
	keys := []string{at.key, at.index[indexOpen], at.index[indexUnknown]}
	if after.ProviderID != "" && !s.names.cluster {
		keys = append(keys, s.names.providerKey(after.ProviderID))
	}
	message, err := s.run(ctx, swapScript, keys,
		seen.stored[:min(headSize, len(seen.stored))], number(seen.now.Add(freshness+s.sender.acks.timeout).UnixMicro()),
		rueidis.BinaryString(after.appendTo(nil)), number(after.timeToLive(seen.now)),
		number(indexOf(&before.Record)), number(to), number(due), publish, after.keptUntil(seen.now))
	if err != nil || message.IsInt64() {
		return nil, err
	}
	return readingOf(message)
}

// timeToLive returns for how many milliseconds the server keeps a value, or 0 for no limit: time alone never removes a
// record in progress or an unknown one (rule S2).
func (v *value) timeToLive(now time.Time) int64 {
	switch v.State {
	case store.StateInProgress, store.StateUnknown:
		return 0
	case store.StateNone:
		return milliseconds(v.Retention + grace)
	default:
		return milliseconds(v.ExpiresAt.Sub(now) + grace)
	}
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 {
	return max(int64((d+time.Millisecond-1)/time.Millisecond), 1)
}
