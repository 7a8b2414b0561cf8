package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// runner is a consumer at work.
type runner struct {
	ConsumerConfig
	// work is what is being applied, on whichever connection it came.
	work sync.WaitGroup
	// failures are those of the events, by their IDs.
	failures consuming.Failures[string]
	// backlog is how many messages waited in the queue when it was last looked at, less those that were handled since,
	// or negative.
	backlog atomic.Int64
}

// watch is who is told of what the consumer does.
func (r *runner) watch() consuming.Watch {
	return consuming.Watch{
		Observer: r.Observer, Propagator: r.Propagator, Logger: r.Logger,
		Backlog: r.left,
	}
}

// left is how many messages wait when one more was handled. A short rush is over before the queue is looked at again, and
// what is told with its last message stays on show until another one comes.
func (r *runner) left() int {
	for {
		n := r.backlog.Load()
		switch {
		case n <= 0:
			return int(n)
		case r.backlog.CompareAndSwap(n, n-1):
			return int(n - 1)
		}
	}
}

// pause waits after a number of failures, or until the context ends.
func (r *runner) pause(ctx context.Context, failures int) {
	backoff.Sleep(ctx, backoff.Jittered(r.MinBackoff, r.MaxBackoff, failures))
}

// outcome is what becomes of a delivery.
type outcome uint8

const (
	// acknowledge is for what was applied, now or before, or put aside.
	acknowledge outcome = iota
	// reject is for poison: the dead-letter exchange gets it.
	reject
	// requeue is for what was interrupted.
	requeue
	// requeueLater is for what has failed.
	requeueLater
)

// apply applies a delivery and says what becomes of it. It also returns how often the event has failed.
func (r *runner) apply(ctx context.Context, d *amqp091.Delivery) (o outcome, failures int) {
	id, err := consuming.EventID(r.EventID, d)
	if err != nil {
		return r.poison(ctx, d, fmt.Errorf("%w: %w", ErrPoison, err)), 0
	}
	tried := false
	_, err = r.watch().Handle(ctx, r.Inbox, r.Name, id, headersOf(d), func(ctx context.Context) error {
		tried = true
		return consuming.Guard(func() error { return r.Handle(ctx, d) })
	})
	if err == nil {
		r.failures.Forget(id)
		return acknowledge, 0
	}
	if ctx.Err() != nil {
		return requeue, 0
	}
	counts := tried && consuming.Counts(err)
	attempts, failures := r.failures.Add(id, counts)
	r.Logger.ErrorContext(ctx, "amqp: an event was not applied",
		"queue", r.Queue, "event", id, "attempts", attempts, "error", err)
	o = requeueLater
	if errors.Is(err, ErrPoison) || counts && attempts >= r.MaxAttempts {
		o = r.poison(ctx, d, err)
	}
	if o != requeueLater {
		r.failures.Forget(id)
	}
	return o, failures
}

// poison decides, or has OnPoison decide, about a delivery that cannot be applied.
func (r *runner) poison(ctx context.Context, d *amqp091.Delivery, cause error) outcome {
	if r.OnPoison == nil {
		r.Logger.ErrorContext(ctx, "amqp: a message is rejected",
			"queue", r.Queue, "message", d.MessageId, "error", cause)
		return reject
	}
	if err := r.OnPoison(ctx, d, cause); err != nil {
		r.Logger.ErrorContext(ctx, "amqp: OnPoison failed",
			"queue", r.Queue, "message", d.MessageId, "error", err)
		return requeueLater
	}
	return acknowledge
}
