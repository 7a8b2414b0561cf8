package tiered

import (
	"context"
	"time"

	"github.com/onceward/onceward/store"
)

// Front is a cache in front of a durable store: a server that nodes share, such as Redis (redis.OpenFront) or
// memcached, or [Memory] in a process that is alone. It may lose its content at any time. It must never return a value
// that was invalidated or has ended: storetest.RunFront tests this.
//
// A call returns when its context ends. Values are shared by the caller and the front: neither may change them.
type Front interface {
	// Now returns a moment of the front's clock that is not later than the call, or the zero time if no such time is
	// known: then no answer is added. It is called for each reservation, so it should not query a server each time: an
	// earlier reading of the server's clock plus the elapsed time is sufficient.
	Now() time.Time
	// Get returns the value that was added for the ID and has not ended, or nil.
	Get(ctx context.Context, id store.ID) (value []byte, err error)
	// Add keeps a value until end, by the front's clock, unless there is a value or a tombstone for the ID. It is one
	// atomic step. A value that has ended when it arrives is not kept.
	Add(ctx context.Context, id store.ID, value []byte, end time.Time) error
	// Invalidate drops the value for the ID, and leaves a tombstone, in one atomic step: nothing is added for the ID
	// for at least that time, counted from the invalidation in the front. An existing tombstone that ends later stays.
	Invalidate(ctx context.Context, id store.ID, lasting time.Duration) error
}

// lookUp queries the front for the answer to a reservation, if that is worthwhile.
func (s *Store) lookUp(ctx context.Context, r *store.Reservation) (v store.Verdict, hit bool) {
	worth := s.worths.of(r.Scope)
	if s.away.Load() || ctx.Err() != nil || store.IsPastFront(ctx) || !worth.sample() {
		return v, false
	}
	value, err := s.front.Get(lookUpContext{s.bound(), ctx}, r.ID)
	if len(value) > 0 && err == nil {
		v, hit = s.answer(r, value)
	}
	if err == nil {
		worth.count(hit)
	} else if ctx.Err() == nil { // a caller that has left proves nothing about the front
		s.failed("get", err)
	}
	s.config.Observer.Observe(ctx, LookedUpEvent{Hit: hit})
	return v, hit
}

// lookUpContext ends when the time for a look-up is over, and has the values of the request.
type lookUpContext struct {
	context.Context
	request context.Context
}

// Value returns a value of the request.
func (c lookUpContext) Value(key any) any { return c.request.Value(key) }

// bound is a context for look-ups that begin at about the same time.
type bound struct {
	context.Context
	cancel context.CancelFunc
	made   time.Time
}

// bound returns a context that ends after FrontTimeout, or up to a quarter later. Look-ups share it: a timer for each
// would cost about as much as everything else here.
func (s *Store) bound() context.Context {
	last := s.bounds.Load()
	now := time.Now()
	if last != nil && now.Sub(last.made) <= s.config.FrontTimeout/4 {
		return last
	}
	next := &bound{made: now}
	next.Context, next.cancel = context.WithTimeout(s.ctx, s.config.FrontTimeout+s.config.FrontTimeout/4)
	s.bounds.Store(next)
	return next
}

// answer replays a value of the front if the durable store would replay it too: it applies the state machine with an
// estimate of the durable store's clock. Values older than MaxAge by the clocks of the nodes are refused. Values from
// the future are refused too, because the clocks are then wrong.
func (s *Store) answer(r *store.Reservation, value []byte) (store.Verdict, bool) {
	held, err := decodeEntry(r.ID, value)
	if err != nil {
		return store.Verdict{}, false
	}
	age := s.config.Clock().Sub(held.readAt)
	if age < 0 || age > s.config.MaxAge {
		return store.Verdict{}, false
	}
	now := held.now.Add(age)
	rec, transition, err := store.Step(held.record, store.Event{Kind: store.EventReserve, Reservation: r}, now)
	if err != nil || transition.Decision != store.DecisionReplay || rec.Response.Status == 0 {
		return store.Verdict{}, false
	}
	return store.Verdict{Decision: store.DecisionReplay, Record: rec, Now: now}, true
}

// moment is when a reservation began, which is before the durable store was read.
type moment struct {
	// front is the front's clock; zero if nothing is to be filled.
	front time.Time
	// node is this node's clock.
	node time.Time
}

func (s *Store) begin() moment {
	if s.away.Load() {
		return moment{}
	}
	return moment{front: s.front.Now(), node: s.config.Clock()}
}

// fill puts an answer that the durable store has replayed into the front, outside of the request. This happens on the
// first retry and not when a record is completed, because most keys are never used again.
func (s *Store) fill(begun moment, v *store.Verdict) {
	left := v.Record.ExpiresAt.Sub(v.Now)
	if v.Decision != store.DecisionReplay || begun.front.IsZero() || v.Now.IsZero() || left <= 0 {
		return
	}
	end := begun.front.Add(min(left, s.config.MaxAge))
	value := entry{record: v.Record, readAt: begun.node, now: v.Now}.appendBinary(nil)
	if len(value) > s.config.MaxBytes {
		return
	}
	select {
	case s.fills <- struct{}{}:
	default:
		return
	}
	id := v.Record.ID
	started := s.background(func() {
		defer func() { <-s.fills }()
		ctx, cancel := context.WithTimeout(s.ctx, writeTimeout)
		defer cancel()
		if err := s.front.Add(ctx, id, value, end); err != nil {
			s.failed("add", err)
		}
	})
	if !started {
		<-s.fills
	}
}

// writeTimeout bounds one write to the front.
const writeTimeout = time.Second
