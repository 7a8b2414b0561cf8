package amqpsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/inbox"
)

// maxTries is how many events have their failures remembered. An event that fails here and is applied elsewhere is never
// forgotten otherwise; when there are too many, counting begins again.
const maxTries = 10_000

// runner is a consumer at work.
type runner struct {
	Consumer
	// work is what is being applied, on whichever connection it came.
	work sync.WaitGroup

	mu sync.Mutex
	// tries counts the failures of events.
	tries map[string]int
}

// grace returns the context to apply with, which goes on for a while when ctx has ended.
func (r *runner) grace(ctx context.Context) (context.Context, context.CancelFunc) {
	applying, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		timer := time.NewTimer(r.Grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-applying.Done():
		}
	})
	return applying, cancel
}

// pause waits after a number of failures before, or until the context ends.
func (r *runner) pause(ctx context.Context, failures int) {
	wait := r.MaxBackoff
	if failures < 32 {
		wait = min(wait, r.MinBackoff<<failures)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
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

// judge applies a delivery and says what becomes of it. It also returns how often the event has failed before this.
func (r *runner) judge(ctx context.Context, d *amqp.Delivery) (v verdict, failures int) {
	id, err := r.eventID(d)
	if err != nil {
		return r.poison(ctx, d, fmt.Errorf("%w: %w", ErrPoison, err)), 0
	}
	tried := false
	_, err = r.Inbox.Handle(ctx, r.Name, id, func(ctx context.Context) error {
		tried = true
		return r.Handle(ctx, d)
	})
	if err == nil {
		r.forget(id)
		return acknowledge, 0
	}
	if ctx.Err() != nil {
		return requeue, 0
	}
	failures = r.failed(id, tried)
	r.Logger.ErrorContext(ctx, "amqpsub: an event was not applied", "queue", r.Queue, "event", id, "tries", failures, "error", err)
	if failures >= r.MaxTries || errors.Is(err, ErrPoison) {
		v = r.poison(ctx, d, err)
		if v != requeueLater {
			r.forget(id)
		}
		return v, failures - 1
	}
	return requeueLater, max(0, failures-1)
}

// eventID asks for the ID, and refuses one that the inbox would not take.
func (r *runner) eventID(d *amqp.Delivery) (string, error) {
	id, err := r.EventID(d)
	if err == nil && (id == "" || len(id) > inbox.MaxName) {
		err = fmt.Errorf("amqpsub: %q is no ID of an event", id)
	}
	return id, err
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

// failed counts a failure, if the handler was tried at all, and returns how many there were.
func (r *runner) failed(id string, tried bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tried {
		if len(r.tries) >= maxTries {
			clear(r.tries)
		}
		r.tries[id]++
	}
	return r.tries[id]
}

func (r *runner) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tries, id)
}
