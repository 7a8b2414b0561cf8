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

// runner is the state of a running consumer.
type runner struct {
	ConsumerConfig
	// work counts the deliveries that are being applied, on any connection.
	work sync.WaitGroup
	// failures counts the failures of each event by its ID.
	failures consuming.Failures[string]
	// backlog is the number of messages that waited in the queue at the last look, minus the messages that were handled
	// since. It is negative if the number is unknown.
	backlog atomic.Int64
}

// watch returns the observer, propagator and logger for the deliveries.
func (r *runner) watch() consuming.Watch {
	return consuming.Watch{
		Observer: r.Observer, Propagator: r.Propagator, Logger: r.Logger,
		Backlog: r.left,
	}
}

// left subtracts one message from the backlog and returns the rest. The queue is looked at too rarely for a short
// burst: without the subtraction, the event of the last message would report a backlog that is already gone, until
// another message arrives.
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

// pause waits for the backoff after a number of failures, or until the context ends.
func (r *runner) pause(ctx context.Context, failures int) {
	backoff.Sleep(ctx, backoff.Jittered(r.MinBackoff, r.MaxBackoff, failures))
}

// outcome is the way in which a delivery is settled.
type outcome uint8

const (
	// acknowledge is for deliveries that were applied, now or earlier, or taken by OnPoison.
	acknowledge outcome = iota
	// reject is for poison: the broker sends it to the dead-letter exchange.
	reject
	// requeue is for deliveries whose handling was interrupted.
	requeue
	// requeueLater is for deliveries that failed.
	requeueLater
)

// apply applies a delivery and returns its outcome, and how often the event has failed.
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

// poison returns the outcome of a delivery that cannot be applied. OnPoison decides, if it is set.
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
