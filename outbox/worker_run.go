package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/backoff"
)

// workerRun is one run of a worker: the messages that it has leased, and its goroutines.
type workerRun struct {
	*Worker
	routes map[string]*routeState

	// hard is the context of deliveries: it ends after the grace, not when the worker is stopped.
	hard     context.Context
	cut      context.CancelFunc
	stopping atomic.Bool
	// writing is the context for recording results: it ends lastWrites after the grace.
	writing context.Context
	giveUp  context.CancelFunc

	hints      <-chan struct{}
	unwatch    func()
	again      chan struct{} // signals that there is room again, or messages may be ready
	finish     *finisher
	deliveries sync.WaitGroup
	background sync.WaitGroup
	maintained time.Time
	purged     time.Time

	mu     sync.Mutex
	held   map[string]*heldLease // by the ID of the message
	report Report
}

// routeState is a route with its state in this run.
type routeState struct {
	Route
	topic  string
	slots  chan struct{}
	leased atomic.Int64
	short  atomic.Bool  // the pump waits for room
	jammed atomic.Bool  // a message waited in vain for a slot, and none has become free since
	speed  atomic.Int64 // a moving average of the time per delivery; zero before the first one
}

func newWorkerRun(w *Worker) *workerRun {
	s := &workerRun{
		Worker: w, routes: make(map[string]*routeState), again: make(chan struct{}, 1), held: make(map[string]*heldLease),
		maintained: time.Now(), purged: time.Now(),
	}
	for topic, route := range w.config.Routes {
		s.routes[topic] = &routeState{Route: route, topic: topic, slots: make(chan struct{}, route.Concurrency)}
	}
	s.hard, s.cut = context.WithCancel(context.Background())
	s.writing, s.giveUp = context.WithCancel(context.Background())
	s.hints, s.unwatch = w.store.WatchMessages()
	s.finish = newFinisher(s)
	s.background.Go(s.finish.loop)
	s.background.Go(s.heartbeat)
	return s
}

// lastWrites is how long a worker continues to record results after its grace. A database
// may have vanished without closing its connections, and the worker must not wait for it.
const lastWrites = 5 * time.Second

// stopWith ends the run with the context: no more messages are
// started, and deliveries that continue after the grace are cut off.
func (s *workerRun) stopWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		s.stopping.Store(true)
		if !backoff.Sleep(s.hard, s.config.Grace) {
			return
		}
		s.cut()
		backoff.Sleep(s.writing, lastWrites)
		s.giveUp()
	})
}

// drain waits for current deliveries and for their results.
func (s *workerRun) drain() {
	s.deliveries.Wait()
	s.finish.flush()
}

// end stops the goroutines of the run.
func (s *workerRun) end() {
	s.unwatch()
	s.cut()
	s.finish.close()
	s.background.Wait()
	s.giveUp()
}

func (s *workerRun) summary() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// track notes a claimed message.
func (s *workerRun) track(route *routeState, c *Claimed, until time.Time) *heldLease {
	l := &heldLease{Lease: c.Lease(), store: s.store, until: until}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.held[c.ID]; old != nil {
		old.lose() // the lease ran out, and this worker claimed the message again
	}
	s.held[c.ID] = l
	route.leased.Add(1)
	return l
}

// untrack notes that a message is no longer leased, and counts its result.
func (s *workerRun) untrack(route *routeState, l *heldLease, count func(r *Report)) {
	s.mu.Lock()
	if s.held[l.ID] == l {
		delete(s.held, l.ID)
	}
	count(&s.report)
	empty := len(s.held) == 0
	s.mu.Unlock()
	route.leased.Add(-1)
	if empty || route.room() && route.short.CompareAndSwap(true, false) {
		s.lookAgain()
	}
}

// lookAgain makes the worker look for messages at once.
func (s *workerRun) lookAgain() {
	select {
	case s.again <- struct{}{}:
	default: // a signal is already pending
	}
}

func (s *workerRun) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held) == 0
}

// horizon is how far ahead a worker claims messages: as many as it delivers in this time.
const horizon = 250 * time.Millisecond

// target returns how many messages to lease at a time. If deliveries are fast, it
// returns more than can run at the same time, so that each statement serves many of
// them. If deliveries are slow, it does not, so that other workers get the rest.
func (r *routeState) target() int {
	speed := time.Duration(r.speed.Load())
	if speed == 0 {
		return r.Concurrency
	}
	return r.Concurrency * int(min(max(horizon/speed, 1), 16))
}

// room reports whether to claim more messages. Half of the leased messages are delivered first, so that each
// claim takes many. But free slots do not wait for deliveries that hang: then an eighth of the slots is enough.
// While all deliveries hang there is no room: other workers should get the messages that cannot be started.
func (r *routeState) room() bool {
	if r.jammed.Load() && len(r.slots) == cap(r.slots) {
		return false
	}
	return int(r.leased.Load()) <= max(r.target()/2, r.Concurrency*7/8)
}

// took notes how long a delivery took.
func (r *routeState) took(d time.Duration) {
	before := r.speed.Load()
	after := int64(max(d, 1))
	if before > 0 {
		after = before + (after-before)/8
	}
	r.speed.Store(max(after, 1)) // only an estimate: a concurrent update may be lost
}
