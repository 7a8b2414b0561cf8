package breaker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/wrap"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// A transaction counts as two calls, before and after the work. The duration and the result of the work prove nothing
// about the store, and a probe ends when the work begins. The call after the work is always made.

// transaction is a call that runs work inside a transaction.
type transaction struct {
	call
	failed error // the error of the work, or nil
	// ordered means that messages are committed with the transaction: its commit then waits for handlers that added
	// messages to the same aggregate.
	ordered atomic.Bool
}

// transactionKey is the key of a context for the transaction that it belongs to.
type transactionKey struct{}

// enter ends the call before the work, and returns the context for the work.
func (t *transaction) enter(ctx context.Context) context.Context {
	var none error
	t.end(&none)
	t.store.working.Add(1)
	return context.WithValue(ctx, transactionKey{}, t)
}

// noteMessage records that a message is committed with the transaction of the context.
func noteMessage(ctx context.Context) {
	if t, ok := store.Value(ctx, transactionKey{}).(*transaction); ok {
		t.ordered.Store(true)
	}
}

// leave begins the call after the work.
func (t *transaction) leave(err error) {
	t.failed = err
	now := time.Now()
	t.store.left.Store(&now)
	t.store.working.Add(-1)
	t.call, _ = t.store.begin(t.ctx, "complete", t.ordered.Load())
}

// finish judges the last call. An error of the work itself is not an error of the store.
func (t *transaction) finish(err *error) {
	if t.failed != nil && errors.Is(*err, t.failed) {
		var none error
		err = &none
	}
	t.end(err)
}

// Transact implements [store.Transactor].
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	in, ok := s.Unwrap().(store.Transactor)
	if !ok {
		return s.Store.Transact(ctx, r, work)
	}
	t := transaction{}
	if t.call, err = s.begin(ctx, "transact", true); err != nil {
		return v, err
	}
	defer t.finish(&err)
	return in.Transact(ctx, r, func(ctx context.Context, v store.Verdict) store.Settlement {
		ctx = t.enter(ctx)
		defer t.leave(nil)
		return work(ctx, v)
	})
}

// CheckpointTx implements [store.TxCheckpointer].
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration,
	work func(ctx context.Context) (store.Checkpoint, error),
) (err error) {
	in, ok := s.Unwrap().(store.TxCheckpointer)
	if !ok {
		return s.Store.CheckpointTx(ctx, c, lease, work)
	}
	t := transaction{}
	if t.call, err = s.begin(ctx, "checkpoint", true); err != nil {
		return err
	}
	defer t.finish(&err)
	return in.CheckpointTx(ctx, c, lease, func(ctx context.Context) (p store.Checkpoint, err error) {
		ctx = t.enter(ctx)
		defer func() { t.leave(err) }()
		return work(ctx)
	})
}

// InTx implements [inbox.Store].
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	in, ok := s.Unwrap().(inbox.Store)
	if !ok {
		return s.Store.InTx(ctx, work)
	}
	return s.inTx(ctx, "transaction", work, func(work func(ctx context.Context) error) error {
		return in.InTx(ctx, work)
	})
}

// FinishMessageTx implements [outbox.Store].
func (s *Store) FinishMessageTx(
	ctx context.Context, outcome outbox.Outcome, work func(ctx context.Context) error,
) error {
	in, ok := s.Unwrap().(outbox.Store)
	if !ok {
		return s.Store.FinishMessageTx(ctx, outcome, work)
	}
	return s.inTx(ctx, "finish messages", work, func(work func(ctx context.Context) error) error {
		return in.FinishMessageTx(ctx, outcome, work)
	})
}

func (s *Store) inTx(ctx context.Context, name wrap.Call, work func(ctx context.Context) error,
	run func(work func(ctx context.Context) error) error,
) (err error) {
	t := transaction{}
	if t.call, err = s.begin(ctx, name, true); err != nil {
		return err
	}
	defer t.finish(&err)
	return run(func(ctx context.Context) (err error) {
		ctx = t.enter(ctx)
		defer func() { t.leave(err) }()
		return work(ctx)
	})
}
