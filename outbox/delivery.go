package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// These are the errors of this package.
var (
	// ErrFenced is returned when a lease is no longer held: another worker has taken the message.
	ErrFenced = errors.New("outbox: the lease on the message is no longer held")
	// ErrPermanent is wrapped by errors after which a delivery is not retried. See [Permanent].
	ErrPermanent = errors.New("outbox: the message cannot be delivered")
)

// Handler delivers a message: it calls another system with the downstream key of the delivery,
// which is the same each time. The handler is called again if it returns an error or does not
// return. It may also be called again after a success, if its worker died before the success
// was recorded. Its context ends with the route's timeout, or when the lease is lost.
type Handler func(ctx context.Context, d *Delivery) (Result, error)

// Result is the result of a successful delivery. The zero value means success and nothing else.
type Result struct {
	// ProviderID is the receiver's id for the effect. It is recorded before the message becomes done.
	ProviderID string
	// Then runs in the transaction that makes the message done, for example to record the result or to add a message
	// that follows. It gets the transaction from its context, with [onceward.Tx] or the function of the store's own
	// package. If Then fails, the message is delivered again, with the ProviderID in its Delivery. A handler that
	// returns a [Permanent] error may set Then too: it runs in the transaction that makes the message a dead letter.
	Then func(ctx context.Context) error
	// Settle is the answer to the operation that added the message, if
	// the operation's record was left unknown to wait for this delivery.
	Settle *store.Completion
}

// Delivery is one attempt to deliver a message.
type Delivery struct {
	Entry
	// ClaimedAt is when the worker took the message, by the store's clock.
	ClaimedAt time.Time

	sent  time.Time // when the claim was sent, by this node's clock
	lease *heldLease
}

// Now returns the time by the store's clock. The result may be a little late, but is never early.
func (d *Delivery) Now() time.Time { return d.ClaimedAt.Add(time.Since(d.sent)) }

// CheckLease returns nil while the worker holds its lease on the message, and otherwise an
// error that wraps [ErrFenced]. A handler with several steps calls it before each step.
func (d *Delivery) CheckLease() error {
	if d.lease == nil {
		return nil
	}
	return d.lease.alive()
}

// RecordProviderID records the receiver's id for the effect at once, for a handler that
// continues with other work. The next delivery, if there is one, has the id in ProviderID.
func (d *Delivery) RecordProviderID(ctx context.Context, id string) error {
	if d.lease == nil {
		return errNoWorker
	}
	if err := d.lease.record(ctx, id); err != nil {
		return err
	}
	d.ProviderID = id
	return nil
}

// RecordAnswer stores the receiver's answer, or anything else that the next
// delivery needs, at once: at most [MaxAnswer] bytes, in place of what was stored
// before. The next delivery has it in Answer, and lists of messages show it.
func (d *Delivery) RecordAnswer(ctx context.Context, answer []byte) error {
	if d.lease == nil {
		return errNoWorker
	}
	if err := checkAnswer(answer); err != nil {
		return err
	}
	if err := d.lease.store.RecordEffect(ctx, d.lease.Lease, "", answer); err != nil {
		return err
	}
	d.Answer = answer
	return nil
}

// errNoWorker is returned when a test calls a handler itself.
var errNoWorker = errors.New("outbox: this delivery is not a worker's")

func checkAnswer(answer []byte) error {
	if len(answer) > MaxAnswer {
		return fmt.Errorf("outbox: an answer of %d bytes, and at most %d are kept", len(answer), MaxAnswer)
	}
	return nil
}

// Permanent marks an error after which the message becomes a dead letter at once, because a retry would not help.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPermanent, err)
}

// RetryAfter marks an error with the time for which the receiver asked the
// sender to wait. The next attempt is not made before that time has passed.
func RetryAfter(err error, wait time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, wait}
}

// retryAfterError is an error with a time to wait.
type retryAfterError struct {
	err  error
	wait time.Duration
}

// Error returns the text of the error.
func (e *retryAfterError) Error() string { return e.err.Error() }

// Unwrap returns the error itself.
func (e *retryAfterError) Unwrap() error { return e.err }
