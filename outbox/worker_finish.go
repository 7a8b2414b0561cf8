package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/backoff"
)

// finished is a message whose delivery has ended.
type finished struct {
	acquired
	route    *routeState
	outcome  Outcome
	attempts int
	elapsed  time.Duration
	err      error
	fenced   bool
}

// maxFinish bounds how many messages are finished with one statement.
const maxFinish = 1000

// finisher writes down how deliveries ended. Those that end while one statement is on the wire go together with the
// next: there is no timer, and a lone one does not wait.
type finisher struct {
	s      *workerRun
	wake   chan struct{}
	closed chan struct{}

	mu    sync.Mutex
	queue []finished
	busy  bool
	quiet *sync.Cond
}

func newFinisher(s *workerRun) *finisher {
	f := &finisher{s: s, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	f.quiet = sync.NewCond(&f.mu)
	return f
}

// add queues an outcome.
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
	f.busy = f.busy || n > 0
	return batch
}

// rest tells flush that a batch has been dealt with.
func (f *finisher) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = false
	f.quiet.Broadcast()
}

// The pauses before a batch that could not be written is tried again, and how long one attempt may take.
const (
	minFinishBackoff = 20 * time.Millisecond
	maxFinishBackoff = 2 * time.Second
	finishTimeout    = 15 * time.Second
)

// write writes a batch down. While the store does not answer it is tried again: the leases are extended meanwhile, and
// if that fails too, other workers deliver the messages again. One that the store will not take does not hold up the
// others.
func (f *finisher) write(batch []finished) {
	for failures := 1; ; failures++ {
		err := f.writeAll(&batch)
		if len(batch) == 0 {
			return
		}
		f.s.config.Logger.Warn("outbox: it could not be written down how deliveries ended", "messages", len(batch),
			"error", err)
		select {
		case <-time.After(backoff.Exponential(minFinishBackoff, maxFinishBackoff, failures)):
			// What has ended meanwhile comes along: if that can be written, the store is not what is wrong.
			batch = append(batch, f.take()...)
		case <-f.s.hard.Done():
			f.abandon(batch, err)
			return
		}
	}
}

// writeAll writes a batch down, and leaves in it what is to be written again. If the batch is refused, each of it
// is tried alone: where others succeed, one that does not is given up, and delivered again when its lease is over.
func (f *finisher) writeAll(batch *[]finished) error {
	fenced, err := f.send(*batch)
	if err == nil {
		f.done(*batch, fenced)
		*batch = nil
		return nil
	}
	refused, rest, err := f.writeEach(*batch, err)
	if len(refused)+len(rest) < len(*batch) {
		f.abandon(refused, err)
		refused = nil
	}
	*batch = append(rest, refused...)
	return err
}

// patience is how many of a batch are tried alone before the store is taken to be down.
const patience = 2

// writeEach writes the members of a batch one by one, and returns those that were refused and, if the store seems to be
// down, those that were not tried.
func (f *finisher) writeEach(batch []finished, err error) (refused, rest []finished, _ error) {
	if len(batch) == 1 {
		return nil, batch, err
	}
	for i, one := range batch {
		fenced, oneErr := f.send(batch[i : i+1])
		if oneErr == nil {
			f.done(batch[i:i+1], fenced)
			continue
		}
		refused, err = append(refused, one), oneErr
		if len(refused) == i+1 && len(refused) == patience {
			return refused, batch[i+1:], err
		}
	}
	return refused, nil, err
}

func (f *finisher) send(batch []finished) ([]Lease, error) {
	outcomes := make([]Outcome, len(batch))
	for i := range batch {
		outcomes[i] = batch[i].outcome
	}
	// The end of the worker's grace does not cut off what is being written at once: that would only make it doubtful.
	ctx, cancel := context.WithTimeout(f.s.writing, finishTimeout)
	defer cancel()
	return f.s.store.FinishMessages(ctx, outcomes)
}

func (f *finisher) done(batch []finished, fenced []Lease) {
	lost := make(map[Lease]bool, len(fenced))
	for _, l := range fenced {
		lost[l] = true
	}
	ordered := false
	for i := range batch {
		if lost[batch[i].outcome.Lease] {
			batch[i].fenced, batch[i].err = true, ErrFenced
		}
		ordered = ordered || batch[i].Ordered()
		f.s.ended(batch[i])
	}
	if ordered {
		f.s.lookAgain() // those behind them may be ready now
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
func (s *workerRun) ended(end finished) {
	outcome := "done"
	count := func(r *Report) { r.Delivered++ }
	switch {
	case end.fenced:
		outcome, count = "lost", func(r *Report) { r.Lost++ }
	case end.outcome.State == StateDead || end.outcome.State == StateHolding:
		outcome, count = "dead letter", func(r *Report) { r.DeadLetters++ }
	case end.outcome.State != StateDone && end.err == nil:
		outcome, count = "", func(*Report) {} // it was not begun
	case end.outcome.State != StateDone:
		outcome, count = "retry", func(r *Report) { r.Retried++ }
	}
	s.untrack(end.route, end.lease, count)
	if outcome != "" {
		s.observe(s.traced(s.hard, end.Claimed), DeliveredEvent{
			ID: end.Origin, Topic: end.Topic, Message: end.ID, Attempts: end.attempts, Outcome: outcome, Elapsed: end.elapsed,
			Err: end.err,
		})
	}
}

// observe tells the observer. A panic of it is logged: the worker, and what else it delivers, goes on.
func (s *workerRun) observe(ctx context.Context, e onceward.ObserverEvent) {
	defer func() {
		if p := recover(); p != nil {
			s.config.Logger.Error("outbox: the observer panicked", "event", fmt.Sprintf("%T", e), "panic", p)
		}
	}()
	s.config.Observer.Observe(ctx, e)
}

// traced returns a context that belongs to the trace that a message was added in.
func (s *workerRun) traced(ctx context.Context, c *Claimed) context.Context {
	if s.config.Propagator == nil {
		return ctx
	}
	return s.config.Propagator.Extract(ctx, c.Headers)
}
