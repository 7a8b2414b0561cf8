package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// InTx runs work in a transaction, which work takes from its context with [Tx] or [onceward.Tx], and commits if work returns
// nil. Work does not end the transaction itself. It may be called again after a rollback that was not its own doing, never
// after a commit. The error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT was lost.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.inTxOnce(ctx, work)
		if !errors.Is(err, errAgain) {
			return err
		}
		if try == maxTries {
			return unavailable(fmt.Errorf("the transaction was undone %d times: %w", try, err))
		}
	}
}

func (s *Store) inTxOnce(ctx context.Context, work func(ctx context.Context) error) error {
	borrowed, err := s.borrow(ctx)
	if err != nil {
		return unavailable(err)
	}
	t := &transaction{store: s, lent: borrowed, conn: borrowed.pgx()}
	defer t.lent.giveBack()
	if err := t.beginPlain(ctx); err != nil {
		return t.notBegun(ctx, unavailable(err))
	}
	return t.finishPlain(t.runPlain(ctx, work))
}

// beginPlain begins the transaction.
func (t *transaction) beginPlain(ctx context.Context) error {
	trip, deadline := t.newTrip(), undisturbed(ctx)
	if err := trip.prepare(ctx, deadline, t.store.sql.transactional()...); err != nil {
		return err
	}
	trip.add(&t.store.sql.begin)
	_, err := trip.run(deadline, func(int, [][]byte) error { return nil })
	return err
}

// runPlain hands the transaction to the work and takes it back, also if the work panics or ends its goroutine.
func (t *transaction) runPlain(ctx context.Context, work func(ctx context.Context) error) (err error) {
	returned := false
	defer func() {
		t.gate.close()
		if !returned {
			_ = t.rollback()
		}
	}()
	t.gate.open(t)
	err = work(t.gate.context(ctx))
	returned = true
	return err
}

// finishPlain commits, or undoes what the work did not succeed with.
func (t *transaction) finishPlain(err error) error {
	status := t.status()
	switch {
	case t.gate.ended.Load() || status == statusIdle:
		return errors.Join(fmt.Errorf("%w: %w: the work did it itself", store.ErrOutcomeUnknown, store.ErrTxOwned), err)
	case status == statusLost:
		return unavailable(errors.Join(errors.New("the connection was lost before the work was done"), err))
	case err == nil && status == statusFailed:
		err = errors.New("postgres: the work said that it succeeded in a transaction in which a statement had failed")
	}
	if err != nil {
		return t.undoStep(err)
	}
	trip, deadline := t.newTrip(), time.Now().Add(settleTimeout)
	return t.commitPlain(trip, deadline)
}

// commitPlain sends COMMIT.
func (t *transaction) commitPlain(trip *pipeline, deadline time.Time) error {
	trip.unnamed = true // the work may have discarded what was prepared
	trip.add(&t.store.sql.commit)
	tag, err := trip.run(deadline, func(int, [][]byte) error { return nil })
	if err != nil {
		err = errors.Join(err, t.rollback())
	}
	switch {
	case err == nil && string(tag) == "COMMIT":
		t.tell()
		return nil
	case err == nil:
		return unavailable(fmt.Errorf("the server answered COMMIT with %s", tag))
	case undone(err):
		return fmt.Errorf("%w: %w", errAgain, err)
	case t.store.refusedWork(err):
		return fmt.Errorf("%w: commit: %w", store.ErrWorkRefused, err)
	case refusedByServer(err):
		return unavailable(fmt.Errorf("commit: %w", err))
	default:
		t.close()
		return fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, err)
	}
}
