package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// InTx runs work in a transaction, which work takes from its context with [Tx] or [onceward.Tx], and commits if work
// returns nil. Work must not end the transaction itself. Work may be called again after a rollback that it did not
// cause, but never after a commit. The error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT was lost.
func (s *Store) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	if err := s.writable(); err != nil {
		return err
	}
	return s.retry(ctx, false, func(ctx context.Context) error {
		x := &plainPlan{transaction: transaction{store: s}, run: work}
		x.plan = x
		return x.try(ctx)
	})
}

// plainPlan is the plan of [Store.InTx]: there is no key, and no record shows the outcome.
type plainPlan struct {
	transaction
	run func(ctx context.Context) error
}

func (x *plainPlan) work(ctx context.Context) (store.TxAction, error) {
	return sqltx.CommitUnless(x.run(ctx))
}

// write adds nothing, but COMMIT is sent unprepared, because the work may have discarded the prepared statements.
func (x *plainPlan) write(trip *pipeline) { trip.unnamed = true }

// advance stores a recovery point in the transaction that took the lock. Like the statements that store an answer, it
// fails unless it writes exactly one row. It writes only what the point sets: the lease, which heartbeats extend
// meanwhile, and marks that the same attempt has stored since the row was read, do not change.
const advance = `WITH written AS (
		UPDATE @record SET point = coalesce($2, point), provider_id = coalesce($3, provider_id),
			data = CASE WHEN $4::bytea IS NULL THEN data ELSE nullif($4, ''::bytea) END,
			not_replayable = coalesce(not_replayable, $5), state = CASE WHEN transaction_timestamp() = $6 THEN state END, step = $8
		WHERE id = $1 AND attempt = $7 AND state IN (10, 11) AND version = 1
		RETURNING id)
	SELECT CASE WHEN count(*) = 1 THEN 1
		ELSE (count(*)::text || ' records of onceward were written')::integer END FROM written`

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer]. It holds the lock that transactions of the same key take,
// but not the lock of the row, which heartbeats need. Its level is READ COMMITTED, because at a stricter level
// each heartbeat would undo it.
func (s *Store) CheckpointTx(
	ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error),
) error {
	if err := s.writable(); err != nil {
		return err
	}
	return s.retry(ctx, false, func(ctx context.Context) error {
		x := &stepPlan{
			transaction: transaction{
				store: s, keyed: true, id: c.ID, hash: s.hash(c.ID), lease: lease, level: readCommittedLevel,
			},
			attempt: c.Attempt, run: work,
		}
		x.plan = x
		return x.try(ctx)
	})
}

// stepPlan is the plan of [Store.CheckpointTx]: a step of an operation and the recovery point that it leads to.
type stepPlan struct {
	transaction
	attempt int64
	run     func(context.Context) (store.Checkpoint, error)
	point   store.Checkpoint
	name    int64 // a random number of this try, which shows in the record that it was committed
}

// decide checks that the step's owner may write.
func (x *stepPlan) decide(locked bool) (run bool, err error) {
	if !locked {
		return false, store.ErrBusy
	}
	_, err = x.advanced(&x.before, store.Checkpoint{})
	return true, err
}

// advanced returns a record with a checkpoint, or the reason why the checkpoint cannot be written.
func (x *stepPlan) advanced(rec *store.Record, p store.Checkpoint) (store.Record, error) {
	after, _, err := store.Step(*rec, store.Event{Kind: store.EventCheckpoint, Attempt: x.attempt, Checkpoint: p}, x.now)
	return after, err
}

func (x *stepPlan) work(ctx context.Context) (action store.TxAction, err error) {
	x.point, err = x.run(ctx)
	return sqltx.CommitUnless(err)
}

func (x *stepPlan) prepare(trip *pipeline, deadline time.Time) (err error) {
	if _, err = x.advanced(&x.before, x.point); err != nil {
		return err
	}
	x.name = randomKey()
	return unavailable(trip.prepare(context.Background(), deadline, &x.store.sql.advance))
}

// write stores the recovery point.
func (x *stepPlan) write(trip *pipeline) {
	trip.add(&x.store.sql.advance, x.hash[:], nullable(x.point.Point), nullable(x.point.ProviderID), x.point.Data,
		trip.mark(mark(x.point.NotReplayable)), trip.int64(x.began), trip.int64(x.attempt), trip.int64(x.name))
}

// learned decides from the record, in which a committed step has left its name, unless another step of the same owner
// came after it. A step that was committed by an attempt that is no longer current is left to the current attempt.
func (x *stepPlan) learned(rec *store.Record, became fate, cause error) error {
	_, fenced := x.advanced(rec, store.Checkpoint{})
	switch {
	case x.foundStep == x.name && fenced == nil:
		return nil
	case became != fateUndone:
		return errors.Join(became.unknown(cause), fenced)
	case fenced != nil:
		return fenced
	default:
		return x.store.notCommitted(cause)
	}
}

// spoiled includes the step's own error only as text. As a value the error would stand for a step that was undone, as
// would an answer with which a step ends its operation.
func (x *stepPlan) spoiled(reason, cause error) error {
	err := x.transaction.spoiled(reason, nil)
	if cause != nil {
		err = fmt.Errorf("%w; the step returned: %s", err, cause)
	}
	return err
}
