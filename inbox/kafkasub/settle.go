package kafkasub

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/consuming"
)

// errStop marks the error by which the consumer has to stop.
var errStop = errors.New("kafkasub: the consumer stops, since there is no OnPoison to decide about the record")

// settle applies a record that has failed so often before, unless it was applied already, or has it put aside. Without an
// error it will not be needed again.
func (r *runner) settle(ctx context.Context, record *kgo.Record, tries int) error {
	id, err := r.eventID(record)
	if err != nil {
		return r.poison(ctx, record, err)
	}
	_, err = r.Inbox.Handle(ctx, r.Name, id, func(ctx context.Context) error {
		return consuming.Guard(func() error { return r.Handle(ctx, record) })
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case errors.Is(err, ErrPoison), consuming.Counts(err) && tries+1 >= r.MaxAttempts:
		return r.poison(ctx, record, err)
	default:
		return err
	}
}

// eventID returns an ID that the inbox takes.
func (r *runner) eventID(record *kgo.Record) (string, error) {
	id, err := r.EventID(record)
	if err != nil {
		return "", err
	}
	if err := consuming.CheckID(id); err != nil {
		return "", fmt.Errorf("kafkasub: %w", err)
	}
	return id, nil
}

// poison has somebody decide about a record that cannot be applied.
func (r *runner) poison(ctx context.Context, record *kgo.Record, cause error) error {
	if r.OnPoison == nil {
		return fmt.Errorf("%w: %w: topic %s, partition %d, offset %d: %w",
			errStop, ErrPoison, record.Topic, record.Partition, record.Offset, cause)
	}
	if err := r.OnPoison(ctx, record, cause); err != nil {
		return fmt.Errorf("kafkasub: OnPoison did not take the record: %w, which cannot be applied: %w", err, cause)
	}
	return nil
}
