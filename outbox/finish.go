package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/onceward"
)

// finished is a message whose delivery has ended.
type finished struct {
	taken
	route   *routeState
	ending  Ending
	tries   int
	elapsed time.Duration
	err     error
	fenced  bool
}

// maxFinish bounds how many messages are finished with one statement.
const maxFinish = 1000

// finisher writes down how deliveries ended. Those that end while one statement is on the wire go together with the next:
// there is no timer, and a lone one waits for nobody.
type finisher struct {
	s      *session
	wake   chan struct{}
	closed chan struct{}

	mu    sync.Mutex
	queue []finished
	busy  bool
	quiet *sync.Cond
}

func newFinisher(s *session) *finisher {
	f := &finisher{s: s, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	f.quiet = sync.NewCond(&f.mu)
	return f
}

// add queues an ending.
func (f *finisher) add(end finished) {
	f.mu.Lock()
	f.queue = append(f.queue, end)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// flush waits until all that was queued is written down, or given up.
func (f *finisher) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.busy || len(f.queue) > 0 {
		f.quiet.Wait()
	}
}

func (f *finisher) close() { close(f.closed) }

func (f *finisher) loop() {
	for {
		if batch := f.take(); len(batch) > 0 {
			f.write(batch)
			f.rest()
			continue
		}
		select {
		case <-f.wake:
		case <-f.closed:
			return
		}
	}
}

func (f *finisher) take() []finished {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.queue), maxFinish)
	batch := f.queue[:n:n]
	f.queue = f.queue[n:]
	f.busy = n > 0
	return batch
}

// rest tells those who wait that a batch has been dealt with.
func (f *finisher) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = false
	f.quiet.Broadcast()
}

// The pauses before a batch that could not be written is tried again, and how long one try may take.
const (
	firstAgain    = 20 * time.Millisecond
	longestAgain  = 2 * time.Second
	finishTimeout = 15 * time.Second
)

// write writes a batch down. While the store does not answer it is tried again: the leases are extended meanwhile, and if
// that fails too, other workers deliver the messages again.
func (f *finisher) write(batch []finished) {
	endings := make([]Ending, len(batch))
	for i := range batch {
		endings[i] = batch[i].ending
	}
	for pause := firstAgain; ; pause = min(2*pause, longestAgain) {
		fenced, err := f.try(endings)
		if err == nil {
			f.done(batch, fenced)
			return
		}
		f.s.config.Logger.Warn("outbox: it could not be written down how deliveries ended", "messages", len(batch), "error", err)
		select {
		case <-time.After(pause):
		case <-f.s.hard.Done():
			f.abandon(batch, err)
			return
		}
	}
}

func (f *finisher) try(endings []Ending) ([]Lease, error) {
	// The end of the worker's grace does not cut off what is being written: that would only make it doubtful.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.s.hard), finishTimeout)
	defer cancel()
	return f.s.store.FinishMessages(ctx, endings)
}

func (f *finisher) done(batch []finished, fenced []Lease) {
	lost := make(map[Lease]bool, len(fenced))
	for _, l := range fenced {
		lost[l] = true
	}
	ordered := false
	for i := range batch {
		if lost[batch[i].ending.Lease] {
			batch[i].fenced, batch[i].err = true, ErrFenced
		}
		ordered = ordered || batch[i].Ordered()
		f.s.ended(batch[i])
	}
	if ordered {
		f.s.poke() // those behind them may be ready now
	}
}

// abandon lets go of what could not be written down: other workers deliver it again.
func (f *finisher) abandon(batch []finished, err error) {
	for i := range batch {
		batch[i].fenced, batch[i].err = true, err
		f.s.ended(batch[i])
	}
}

// ended lets go of a message and tells the observer.
func (s *session) ended(end finished) {
	outcome := "done"
	count := func(r *Report) { r.Delivered++ }
	switch {
	case end.fenced:
		outcome, count = "lost", func(r *Report) { r.Lost++ }
	case end.ending.State == Dead || end.ending.State == Holding:
		outcome, count = "dead letter", func(r *Report) { r.DeadLetters++ }
	case end.ending.State != Done && end.err == nil:
		outcome, count = "", func(*Report) {} // it was not begun
	case end.ending.State != Done:
		outcome, count = "retry", func(r *Report) { r.Retried++ }
	}
	s.let(end.route, end.lease, count)
	if outcome != "" {
		s.config.Observer.Observe(s.hard, onceward.DeliveredEvent{
			ID: end.Origin, Topic: end.Topic, Message: end.ID, Tries: end.tries, Outcome: outcome, Elapsed: end.elapsed, Err: end.err,
		})
	}
}
