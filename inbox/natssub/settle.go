package natssub

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/internal/consuming"
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
func (r *runner) settle(ctx context.Context, m jetstream.Msg, sequence uint64) (ending, error) {
	end, err := r.try(ctx, m, sequence)
	if end != failed {
		r.failures.Forget(sequence)
	}
	return end, err
}

// try is settle, and counts failures. The server's count of deliveries would not do: it includes those that came while the store
// was away, and those that another consumer handed back.
func (r *runner) try(ctx context.Context, m jetstream.Msg, sequence uint64) (ending, error) {
	id, err := r.eventID(m)
	if err != nil {
		return r.poison(ctx, m, sequence, err)
	}
	_, err = r.Inbox.Handle(ctx, r.Name, id, func(ctx context.Context) error {
		return consuming.Guard(func() error { return r.Handle(ctx, m) })
	})
	if err == nil {
		return applied, nil
	}
	if ctx.Err() != nil {
		return failed, err
	}
	counts := consuming.Counts(err)
	tries, _ := r.failures.Add(sequence, counts)
	if errors.Is(err, ErrPoison) || counts && tries >= r.MaxAttempts {
		return r.poison(ctx, m, sequence, err)
	}
	return failed, err
}

// eventID returns an ID that the inbox takes.
func (r *runner) eventID(m jetstream.Msg) (string, error) {
	id, err := r.EventID(m)
	if err != nil {
		return "", err
	}
	if err := consuming.CheckID(id); err != nil {
		return "", fmt.Errorf("natssub: %w", err)
	}
	return id, nil
}

// poison has somebody decide about a message that cannot be applied.
func (r *runner) poison(ctx context.Context, m jetstream.Msg, sequence uint64, cause error) (ending, error) {
	if r.OnPoison == nil {
		return stopped, fmt.Errorf("%w, and there is no OnPoison to decide about it: subject %s, sequence %d: %w",
			ErrPoison, m.Subject(), sequence, cause)
	}
	if err := r.OnPoison(ctx, m, cause); err != nil {
		return failed, fmt.Errorf("natssub: OnPoison did not take the message: %w, which cannot be applied: %w", err, cause)
	}
	return putAside, nil
}
