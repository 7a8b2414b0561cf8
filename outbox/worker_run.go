package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// session is one run of a worker: what it has in hand, and the goroutines that work on it.
type session struct {
	*Worker
	routes map[string]*routeState

	// hard is the context of deliveries: it ends when the grace is over, not when the worker is told to stop.
	hard     context.Context
	cut      context.CancelFunc
	stopping atomic.Bool

	hints      <-chan struct{}
	unwatch    func()
	nudge      chan struct{} // there is room again, or messages may have become ready
	finish     *finisher
	deliveries sync.WaitGroup
	background sync.WaitGroup
	maintained time.Time
	purged     time.Time

	mu     sync.Mutex
	held   map[string]*heldLease // by the ID of the message
	report Report
}

// routeState is a route with what of it is in hand.
type routeState struct {
	Route
	topic  string
	slots  chan struct{}
	inHand atomic.Int64
	short  atomic.Bool  // the pump wants to know when there is room again
	speed  atomic.Int64 // a moving average of the time that deliveries take; zero if there was none
}

func newSession(w *Worker) *session {
	s := &session{
		Worker: w, routes: make(map[string]*routeState), nudge: make(chan struct{}, 1), held: make(map[string]*heldLease),
		maintained: time.Now(), purged: time.Now(),
	}
	for topic, route := range w.config.Routes {
		s.routes[topic] = &routeState{Route: route, topic: topic, slots: make(chan struct{}, route.Concurrency)}
	}
	s.hard, s.cut = context.WithCancel(context.Background())
	s.hints, s.unwatch = w.store.WatchMessages()
	s.finish = newFinisher(s)
	s.background.Go(s.finish.loop)
	s.background.Go(s.heartbeat)
	return s
}

// obey ends the session with the context: then nothing more is begun, and when the grace is over, what is still under way is
// cut off.
func (s *session) obey(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		s.stopping.Store(true)
		select {
		case <-time.After(s.config.Grace):
			s.cut()
		case <-s.hard.Done():
		}
	})
}

// drain waits for what is under way.
func (s *session) drain() {
	s.deliveries.Wait()
	s.finish.flush()
}

// end stops the goroutines of the session.
func (s *session) end() {
	s.unwatch()
	s.cut()
	s.finish.close()
	s.background.Wait()
}

func (s *session) summary() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// hold notes a message that is in hand.
func (s *session) hold(route *routeState, c *Claimed, until time.Time) *heldLease {
	l := &heldLease{Lease: c.Lease(), store: s.store, until: until}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.held[c.ID]; old != nil {
		old.lose() // it ran out, and this worker was the next
	}
	s.held[c.ID] = l
	route.inHand.Add(1)
	return l
}

// let notes that a message is no longer in hand, and counts how it ended.
func (s *session) let(route *routeState, l *heldLease, count func(r *Report)) {
	s.mu.Lock()
	if s.held[l.ID] == l {
		delete(s.held, l.ID)
	}
	count(&s.report)
	empty := len(s.held) == 0
	s.mu.Unlock()
	route.inHand.Add(-1)
	if empty || route.room() && route.short.CompareAndSwap(true, false) {
		s.poke()
	}
}

// poke makes the pump look for messages.
func (s *session) poke() {
	select {
	case s.nudge <- struct{}{}:
	default: // it has been told and has not looked yet
	}
}

func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held) == 0
}

// horizon is how far ahead a worker takes messages: as many as it delivers in this time.
const horizon = 250 * time.Millisecond

// target is how many messages to have in hand: more if they are delivered quickly, so that each statement of the database
// serves many of them; no more than can be under way if they are slow, so that other workers get the rest.
func (r *routeState) target() int {
	speed := time.Duration(r.speed.Load())
	if speed == 0 {
		return r.Concurrency
	}
	return r.Concurrency * int(min(max(horizon/speed, 1), 8))
}

// room reports whether to take more. Half of what is in hand goes before that, so that each claim takes many. But slots that
// are free do not wait for those that hang: there an eighth of the slots is enough.
func (r *routeState) room() bool {
	return int(r.inHand.Load()) <= max(r.target()/2, r.Concurrency*7/8)
}

// took notes how long a delivery took.
func (r *routeState) took(d time.Duration) {
	before := r.speed.Load()
	after := int64(max(d, 1))
	if before > 0 {
		after = before + (after-before)/8
	}
	r.speed.Store(max(after, 1)) // it is a hint: of two at once one may be lost
}

// heartbeat extends all leases in hand in one statement, three times in the time of a lease.
func (s *session) heartbeat() {
	ticker := time.NewTicker(s.config.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.extend()
		case <-s.hard.Done():
			return
		}
	}
}

func (s *session) extend() {
	var stuck []string
	s.mu.Lock()
	leases := make([]Lease, 0, len(s.held))
	held := make(map[string]*heldLease, len(s.held))
	for id, l := range s.held {
		hangs, news := l.hangs()
		if news {
			stuck = append(stuck, id)
		}
		if !hangs { // otherwise another worker gets it when the lease is over
			leases = append(leases, l.Lease)
			held[id] = l
		}
	}
	s.mu.Unlock()
	for _, id := range stuck {
		s.config.Logger.Error("outbox: a delivery hangs past its time, and takes a place of its route", "message", id)
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.hard, s.config.Lease/3)
	defer cancel()
	sent := time.Now()
	lost, err := s.store.ExtendMessages(ctx, leases, s.config.Lease)
	if err != nil {
		s.config.Logger.Warn("outbox: leases could not be extended", "messages", len(leases), "error", err)
		for _, l := range held {
			if l.alive() != nil {
				l.lose() // another worker may have it by now
			}
		}
		return
	}
	for _, l := range lost {
		held[l.ID].lose()
		delete(held, l.ID)
	}
	for _, l := range held {
		l.extend(sent.Add(s.config.Lease))
	}
}
