package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// The errors of this package.
var (
	// ErrFenced is returned when a lease is no longer held: another worker has taken the message.
	ErrFenced = errors.New("outbox: the lease on the message is no longer held")
	// ErrPermanent is wrapped by errors after which a delivery is not tried again. See [Permanent].
	ErrPermanent = errors.New("outbox: the message cannot be delivered")
)

// Handler delivers a message: it calls another system, with the downstream key of the delivery, which is the same each
// time. It is called again if it returns an error or does not come back, and it may be called again although it
// succeeded: when its worker died before that was recorded. Its context ends with the route's timeout, or when the
// lease is lost.
type Handler func(ctx context.Context, d *Delivery) (Result, error)

// Result is what a successful delivery led to. The zero value says only that it succeeded.
type Result struct {
	// ProviderID is the id that the receiver gave to the effect. It is recorded before the message is done.
	ProviderID string
	// Then runs in the transaction that makes the message done, and takes that from its context, with [onceward.Tx] or
	// the way of the store's own package: to write down what became of it, or to add a message that follows. If it
	// fails, the message is delivered again, and finds the ProviderID in its Delivery. A handler that returns an error
	// which is [Permanent] may have one too: it runs in the transaction that makes the message a dead letter.
	Then func(ctx context.Context) error
	// Settle is the answer for the operation that added the message, where its record was left as unknown to wait for
	// this.
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

// Now returns the time by the store's clock, or a little later: never earlier than it is.
func (d *Delivery) Now() time.Time { return d.ClaimedAt.Add(time.Since(d.sent)) }

// CheckLease reports whether the worker still holds its lease on the message; a handler of several steps asks before
// each. The error wraps [ErrFenced].
func (d *Delivery) CheckLease() error {
	if d.lease == nil {
		return nil
	}
	return d.lease.alive()
}

// RecordProviderID keeps the id that the receiver gave to the effect, at once: for a handler that does more afterwards.
// The next delivery, if there is one, finds it in ProviderID.
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

// RecordAnswer keeps what the receiver answered, or anything else that the next delivery must know, at once: at most
// [MaxAnswer] bytes, in the place of what was kept before. The next delivery finds it in Answer, and so does a
// list of messages.
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

// errNoWorker is returned where a test calls a handler itself.
var errNoWorker = errors.New("outbox: this delivery is not a worker's")

func checkAnswer(answer []byte) error {
	if len(answer) > MaxAnswer {
		return fmt.Errorf("outbox: an answer of %d bytes, and at most %d are kept", len(answer), MaxAnswer)
	}
	return nil
}

// Permanent marks an error after which the message becomes a dead letter at once, because to try again would not help.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPermanent, err)
}

// RetryAfter marks an error with the time that the receiver asked to be left alone for. The next attempt is not before
// that.
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
