package amqpsub

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/consuming"
)

// runner is a consumer at work.
type runner struct {
	Consumer
	// work is what is being applied, on whichever connection it came.
	work sync.WaitGroup
	// failures are those of the events, by their IDs.
	failures consuming.Failures[string]
}

// pause waits after a number of failures, or until the context ends.
func (r *runner) pause(ctx context.Context, failures int) {
	backoff.Sleep(ctx, backoff.Jittered(r.MinBackoff, r.MaxBackoff, failures))
}

// verdict is what becomes of a delivery.
type verdict uint8

const (
	// acknowledge is for what was applied, now or before, or put aside.
	acknowledge verdict = iota
	// reject is for poison: the dead-letter exchange gets it.
	reject
	// requeue is for what was interrupted.
	requeue
	// requeueLater is for what has failed.
	requeueLater
)

// judge applies a delivery and says what becomes of it. It also returns how often the event has failed.
func (r *runner) judge(ctx context.Context, d *amqp.Delivery) (v verdict, failures int) {
	id, err := r.eventID(d)
	if err != nil {
		return r.poison(ctx, d, fmt.Errorf("%w: %w", ErrPoison, err)), 0
	}
	tried := false
	_, err = r.Inbox.Handle(ctx, r.Name, id, func(ctx context.Context) error {
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
	tries, failures := r.failures.Add(id, counts)
	r.Logger.ErrorContext(ctx, "amqpsub: an event was not applied", "queue", r.Queue, "event", id, "tries", tries, "error", err)
	v = requeueLater
	if errors.Is(err, ErrPoison) || counts && tries >= r.MaxAttempts {
		v = r.poison(ctx, d, err)
	}
	if v != requeueLater {
		r.failures.Forget(id)
	}
	return v, failures
}

// eventID asks for the ID, and refuses one that the inbox would not take.
func (r *runner) eventID(d *amqp.Delivery) (string, error) {
	id, err := r.EventID(d)
	if err != nil {
		return "", err
	}
	if err := consuming.CheckID(id); err != nil {
		return "", fmt.Errorf("amqpsub: %w", err)
	}
	return id, nil
}

// poison has it decided about a delivery that cannot be applied.
func (r *runner) poison(ctx context.Context, d *amqp.Delivery, cause error) verdict {
	if r.OnPoison == nil {
		r.Logger.ErrorContext(ctx, "amqpsub: a message is rejected", "queue", r.Queue, "message", d.MessageId, "error", cause)
		return reject
	}
	if err := r.OnPoison(ctx, d, cause); err != nil {
		r.Logger.ErrorContext(ctx, "amqpsub: OnPoison failed", "queue", r.Queue, "message", d.MessageId, "error", err)
		return requeueLater
	}
	return acknowledge
}
