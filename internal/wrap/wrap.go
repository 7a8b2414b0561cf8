// Package wrap is shared by the wrappers of stores: a [Store] that passes every call to the inner store. A wrapper
// embeds it, and writes the methods that it changes.
package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/natural"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
)

// Store has the methods of every capability, and is a [store.Wrapper]: a call that the inner store does not support
// returns an error that wraps [errors.ErrUnsupported].
type Store struct {
	inside store.Store
	around Around
}

// Around is called for each call that has a context, with its name. It makes the call with next, or refuses it. It
// returns the error of the call.
type Around func(ctx context.Context, call Call, next func(ctx context.Context) error) error

// Call is the name of a method in words, as errors and observers show it.
type Call string

// New returns a wrapper of a store. Around may be nil.
func New(inside store.Store, around Around) *Store {
	if around == nil {
		around = func(ctx context.Context, _ Call, next func(ctx context.Context) error) error { return next(ctx) }
	}
	return &Store{inside, around}
}

// Unwrap implements [store.Wrapper].
func (s *Store) Unwrap() store.Store { return s.inside }

// Close closes the inner store, if it can be closed.
func (s *Store) Close() error {
	if closer, ok := s.inside.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// call makes a call of a capability.
func call[T any](ctx context.Context, s *Store, name Call, next func(ctx context.Context, able T) error) error {
	able, err := capability[T](s)
	if err != nil {
		return err
	}
	return s.around(ctx, name, func(ctx context.Context) error { return next(ctx, able) })
}

// query makes a call like [call] for a method that returns a value.
func query[T, V any](
	ctx context.Context, s *Store, name Call, next func(ctx context.Context, able T) (V, error),
) (value V, err error) {
	err = call(ctx, s, name, func(ctx context.Context, able T) (err error) {
		value, err = next(ctx, able)
		return err
	})
	return value, err
}

func capability[T any](s *Store) (T, error) {
	able, ok := s.inside.(T)
	if !ok {
		return able, fmt.Errorf("onceward: %T is no %s: %w", s.inside, reflect.TypeFor[T](), errors.ErrUnsupported)
	}
	return able, nil
}

// Store implements all of these interfaces.
var (
	_ store.Wrapper              = (*Store)(nil)
	_ store.Transactor           = (*Store)(nil)
	_ store.TxCheckpointer       = (*Store)(nil)
	_ store.Waiter               = (*Store)(nil)
	_ store.Sweeper              = (*Store)(nil)
	_ store.Reaper               = (*Store)(nil)
	_ store.SelfReaper           = (*Store)(nil)
	_ store.Reconciler           = (*Store)(nil)
	_ store.Buster               = (*Store)(nil)
	_ store.Lister               = (*Store)(nil)
	_ store.LateCompletionKeeper = (*Store)(nil)
	_ store.ExternalEventKeeper  = (*Store)(nil)
	_ store.Auditor              = (*Store)(nil)
	_ store.AuditLister          = (*Store)(nil)
	_ store.ExecutionAuditor     = (*Store)(nil)
	_ store.Rewriter             = (*Store)(nil)
	_ store.Finder               = (*Store)(nil)
	_ store.Retainer             = (*Store)(nil)
	_ outbox.Store               = (*Store)(nil)
	_ outbox.AnswerStore         = (*Store)(nil)
	_ inbox.Store                = (*Store)(nil)
	_ natural.Store              = (*Store)(nil)
)

// Reserve implements [store.Store].
func (s *Store) Reserve(ctx context.Context, r *store.Reservation) (store.Verdict, error) {
	return query(ctx, s, "reserve", func(ctx context.Context, in store.Store) (store.Verdict, error) {
		return in.Reserve(ctx, r)
	})
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration) error {
	return call(ctx, s, "extend", func(ctx context.Context, in store.Store) error { return in.Extend(ctx, c, lease) })
}

// Checkpoint implements [store.Store].
func (s *Store) Checkpoint(ctx context.Context, c store.Claim, p store.Checkpoint) error {
	return call(ctx, s, "checkpoint", func(ctx context.Context, in store.Store) error { return in.Checkpoint(ctx, c, p) })
}

// Complete implements [store.Store].
func (s *Store) Complete(ctx context.Context, c store.Claim, done *store.Completion) (time.Time, error) {
	return query(ctx, s, "complete", func(ctx context.Context, in store.Store) (time.Time, error) {
		return in.Complete(ctx, c, done)
	})
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, c store.Claim, reason string) error {
	return call(ctx, s, "release", func(ctx context.Context, in store.Store) error { return in.Release(ctx, c, reason) })
}

// Abandon implements [store.Store].
func (s *Store) Abandon(ctx context.Context, c store.Claim, reason string) error {
	return call(ctx, s, "abandon", func(ctx context.Context, in store.Store) error { return in.Abandon(ctx, c, reason) })
}

// Reject implements [store.Store].
func (s *Store) Reject(ctx context.Context, c store.Claim) error {
	return call(ctx, s, "reject", func(ctx context.Context, in store.Store) error { return in.Reject(ctx, c) })
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	return query(ctx, s, "get", func(ctx context.Context, in store.Store) (store.Record, error) { return in.Get(ctx, id) })
}

// Transact implements [store.Transactor].
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(ctx context.Context, v store.Verdict) store.Settlement,
) (store.Verdict, error) {
	return query(ctx, s, "transact", func(ctx context.Context, in store.Transactor) (store.Verdict, error) {
		return in.Transact(ctx, r, work)
	})
}

// LongestWork implements [store.Transactor].
func (s *Store) LongestWork(lease time.Duration) time.Duration {
	if in, ok := s.inside.(store.Transactor); ok {
		return in.LongestWork(lease)
	}
	return 0
}

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool {
	in, ok := s.inside.(store.Transactor)
	return ok && in.InFlight(id)
}

// CheckpointTx implements [store.TxCheckpointer].
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration,
	work func(ctx context.Context) (store.Checkpoint, error),
) error {
	return call(ctx, s, "checkpoint", func(ctx context.Context, in store.TxCheckpointer) error {
		return in.CheckpointTx(ctx, c, lease, work)
	})
}

// Wait implements [store.Waiter].
func (s *Store) Wait(ctx context.Context, id store.ID, attempt int64) error {
	return call(ctx, s, "wait", func(ctx context.Context, in store.Waiter) error { return in.Wait(ctx, id, attempt) })
}
