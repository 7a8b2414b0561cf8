package natssub

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
)

// ending is what became of a message.
type ending int

const (
	applied  ending = iota // now or before
	putAside               // by OnPoison
	failed                 // and is to come again
	stopped                // at it, since it is poison and there is no OnPoison
)

// settle applies a message unless it was applied already, or has it put aside.
func (r *runner) settle(ctx context.Context, m jetstream.Msg, deliveries uint64) (ending, error) {
	id, err := r.eventID(m)
	if err != nil {
		return r.poison(ctx, m, err)
	}
	_, err = r.Inbox.Handle(ctx, r.Name, id, func(ctx context.Context) error { return r.handle(ctx, m) })
	switch {
	case err == nil:
		return applied, nil
	case ctx.Err() != nil:
		return failed, err
	case errors.Is(err, ErrPoison), !errors.Is(err, onceward.ErrUnavailable) && deliveries >= uint64(r.MaxDeliveries):
		return r.poison(ctx, m, err)
	default:
		return failed, err
	}
}

// eventID returns an ID that the inbox takes.
func (r *runner) eventID(m jetstream.Msg) (string, error) {
	id, err := r.EventID(m)
	if err != nil {
		return "", err
	}
	if id == "" || len(id) > inbox.MaxName {
		return "", fmt.Errorf("natssub: an event ID of %d bytes, and 1 to %d are allowed", len(id), inbox.MaxName)
	}
	return id, nil
}

// handle calls the handler. A panic becomes an error, so that one bad message does not end the process each time it comes.
func (r *runner) handle(ctx context.Context, m jetstream.Msg) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("natssub: the handler panicked: %v\n%s", cause, debug.Stack())
		}
	}()
	return r.Handle(ctx, m)
}

// poison has somebody decide about a message that cannot be applied.
func (r *runner) poison(ctx context.Context, m jetstream.Msg, cause error) (ending, error) {
	if r.OnPoison == nil {
		sequence := uint64(0)
		if metadata, err := m.Metadata(); err == nil {
			sequence = metadata.Sequence.Stream
		}
		return stopped, fmt.Errorf("%w, and there is no OnPoison to decide about it: subject %s, sequence %d: %w",
			ErrPoison, m.Subject(), sequence, cause)
	}
	if err := r.OnPoison(ctx, m, cause); err != nil {
		return failed, fmt.Errorf("natssub: OnPoison did not take the message: %w, which cannot be applied: %w", err, cause)
	}
	return putAside, nil
}
