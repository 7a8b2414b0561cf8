package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// heldLease is a worker's lease on one message, as far as the worker knows. It counts from the moment at which the last
// successful claim or extension was sent, by this node's clock.
type heldLease struct {
	Lease
	store Store

	mu     sync.Mutex
	until  time.Time
	lost   bool
	cancel context.CancelCauseFunc // of the delivery that is under way; nil if none is
}

// alive reports why the lease cannot be relied on any more.
func (l *heldLease) alive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost:
		return ErrFenced
	case !time.Now().Before(l.until):
		return fmt.Errorf("%w: it counted until %s", ErrFenced, l.until.Format(time.RFC3339Nano))
	default:
		return nil
	}
}

// extend notes a successful extension that was sent at that time.
func (l *heldLease) extend(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = until
}

// lose notes that another worker has the message, and ends the delivery that is under way.
func (l *heldLease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
	if l.cancel != nil {
		l.cancel(ErrFenced)
	}
}

// begin returns the context of a delivery, which ends when the lease is lost.
func (l *heldLease) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = cancel
	if l.lost {
		cancel(ErrFenced) // just now
	}
	return ctx, func() { cancel(context.Canceled) }
}

// record keeps the receiver's id for the effect.
func (l *heldLease) record(ctx context.Context, providerID string) error {
	return l.store.RecordProviderID(ctx, l.Lease, providerID)
}
