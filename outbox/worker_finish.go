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

// maxFinish is the largest number of messages that are finished with one statement.
const maxFinish = 1000

// finisher records the results of deliveries. Results that arrive during a statement are written
// together with the next statement: there is no timer, and a single result does not wait.
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

// flush waits until all queued results are recorded or given up.
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

// rest reports to flush that a batch has been processed.
func (f *finisher) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = false
	f.quiet.Broadcast()
}

// These are the pauses before a failed batch is retried, and the timeout of one attempt.
const (
	minFinishBackoff = 20 * time.Millisecond
	maxFinishBackoff = 2 * time.Second
	finishTimeout    = 15 * time.Second
)

// write records a batch. While the store does not answer, write retries: the leases
// are extended meanwhile, and if that fails too, other workers deliver the messages
// again. A result that the store refuses does not delay the other results.
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
			// Results that have arrived meanwhile join the batch: if they can be written, the store is not the problem.
			batch = append(batch, f.take()...)
		case <-f.s.hard.Done():
			f.abandon(batch, err)
			return
		}
	}
}

// writeAll records a batch, and leaves in it the results that must be written again.
// If the batch is refused, each result is tried alone: if others succeed, a result
// that fails is given up, and its message is delivered again after its lease.
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

// patience is how many results of a batch are tried alone before the store is assumed to be down.
const patience = 2

// writeEach records the results of a batch one by one. It returns the refused
// results and, if the store seems to be down, the results that were not tried.
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
	// The end of the worker's grace does not cut off a write at once: that would only make its result uncertain.
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
		f.s.lookAgain() // the next messages of their aggregates may be ready now
	}
}

// abandon ends messages whose results could not be recorded: other workers deliver them again.
func (f *finisher) abandon(batch []finished, err error) {
	for i := range batch {
		batch[i].fenced, batch[i].err = true, err
		f.s.ended(batch[i])
	}
}

// ended ends a message and sends the observer an event.
func (s *workerRun) ended(end finished) {
	outcome := "done"
	count := func(r *Report) { r.Delivered++ }
	switch {
	case end.fenced:
		outcome, count = "lost", func(r *Report) { r.Lost++ }
	case end.outcome.State == StateDead || end.outcome.State == StateHolding:
		outcome, count = "dead letter", func(r *Report) { r.DeadLetters++ }
	case end.outcome.State != StateDone && end.err == nil:
		outcome, count = "", func(*Report) {} // the delivery was not started
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

// observe sends the observer an event. A panic of the observer is logged, and the worker continues with its deliveries.
func (s *workerRun) observe(ctx context.Context, e onceward.ObserverEvent) {
	defer func() {
		if p := recover(); p != nil {
			s.config.Logger.Error("outbox: the observer panicked", "event", fmt.Sprintf("%T", e), "panic", p)
		}
	}()
	s.config.Observer.Observe(ctx, e)
}

// traced returns a context that belongs to the trace in which a message was added.
func (s *workerRun) traced(ctx context.Context, c *Claimed) context.Context {
	if s.config.Propagator == nil {
		return ctx
	}
	return s.config.Propagator.Extract(ctx, c.Headers)
}
