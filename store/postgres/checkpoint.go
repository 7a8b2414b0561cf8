package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/store"
)

// advance stores a recovery point in the transaction that took the lock. Like the statements of a settlement, it fails
// unless it writes exactly one row. It leaves the lease alone, which heartbeats extend meanwhile.
const advance = `WITH written AS (
		UPDATE @record SET more = $2, queue = CASE WHEN transaction_timestamp() = $3 THEN queue END
		WHERE id = $1 AND attempt = $4 AND queue IN (10, 11)
		RETURNING attempt)
	SELECT CASE WHEN count(*) = 1 THEN 1 ELSE (count(*)::text || ' records of onceward were written')::integer END FROM written`

var _ store.TxCheckpointer = (*Store)(nil)

// CheckpointTx implements [store.TxCheckpointer]. It holds the lock that transactions of the same key take, not that of
// the row, which heartbeats need.
func (s *Store) CheckpointTx(ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error)) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.checkpointOnce(ctx, c, lease, work)
		if !errors.Is(err, errAgain) {
			return err
		}
		if try == maxTries {
			return unavailable(fmt.Errorf("the transaction was undone %d times: %w", try, err))
		}
	}
}

func (s *Store) checkpointOnce(ctx context.Context, c store.Claim, lease time.Duration, work func(context.Context) (store.Checkpoint, error)) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	borrowed, err := s.borrow(ctx)
	if err != nil {
		return unavailable(err)
	}
	t := &transaction{
		store: s, lent: borrowed, conn: borrowed.pgx(), hash: s.hash(c.ID),
		reservation: &store.Reservation{ID: c.ID, Lease: lease},
	}
	defer t.lent.giveBack()
	locked, err := t.begin(ctx)
	switch {
	case err == nil && !locked:
		err = unavailable(errors.New("another attempt of the operation is still in a transaction"))
	case err == nil:
		_, err = t.progress(c, store.Checkpoint{})
	}
	if err != nil {
		return t.notBegun(ctx, err)
	}
	return t.advance(ctx, c, work)
}

// progress is the record with a checkpoint, or why it cannot be written.
func (t *transaction) progress(c store.Claim, p store.Checkpoint) (store.Record, error) {
	after, _, err := store.Step(t.before, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt, Checkpoint: p}, t.now)
	return after, err
}

// advance runs a step and commits it with the recovery point that it leads to.
func (t *transaction) advance(ctx context.Context, c store.Claim, work func(context.Context) (store.Checkpoint, error)) error {
	p, err := t.step(ctx, work)
	status := t.status()
	switch {
	case t.gate.ended.Load() || status == statusIdle:
		return fmt.Errorf("%w: %w: the step did it itself", store.ErrOutcomeUnknown, store.ErrTxOwned)
	case status == statusLost:
		return unavailable(errors.Join(errors.New("the connection was lost before the step was done"), err))
	case err != nil && !t.same(status):
		return fmt.Errorf("%w: %w: the step did it itself, and began another", store.ErrOutcomeUnknown, store.ErrTxOwned)
	case err == nil && status == statusFailed:
		err = errors.New("postgres: the step said that it succeeded in a transaction in which a statement had failed")
	}
	if err != nil {
		return t.undoStep(err)
	}
	after, err := t.progress(c, p)
	if err != nil {
		return errors.Join(err, t.rollback())
	}
	if err := t.sendPoint(&after); err != nil {
		return t.resolvePoint(c, &after, err)
	}
	return nil
}

// step hands the transaction to the work and takes it back, also if the work panics or ends its goroutine.
func (t *transaction) step(ctx context.Context, work func(context.Context) (store.Checkpoint, error)) (p store.Checkpoint, err error) {
	returned := false
	defer func() {
		t.gate.close()
		if !returned {
			_ = t.rollback()
		}
	}()
	t.gate.open(t)
	p, err = work(t.gate.context(ctx))
	returned = true
	return p, err
}

// undoStep rolls back. If a statement failed because of the neighbours, the work gets another chance.
func (t *transaction) undoStep(cause error) error {
	if err := t.rollback(); err != nil {
		t.close() // the server undoes what it loses the connection of
	}
	if t.gate.undone {
		return fmt.Errorf("%w: %w", errAgain, cause)
	}
	return cause
}

// sendPoint stores the recovery point and commits.
func (t *transaction) sendPoint(after *store.Record) error {
	var r row
	r.encode(after, t.hash, t.number)
	sql := &t.store.sql
	trip := t.newTrip()
	deadline := time.Now().Add(settleTimeout)
	if err := trip.prepare(context.Background(), deadline, &sql.advance); err != nil {
		return err
	}
	trip.add(&sql.advance, t.hash[:], r.more, trip.int64(t.began), trip.int64(after.Attempt))
	trip.add(&sql.commit)
	return committed(trip.run(deadline, func(int, [][]byte) error { return nil }))
}

// resolvePoint finds out what became of a commit that ended in an error, as resolve does for an answer.
func (t *transaction) resolvePoint(c store.Claim, wanted *store.Record, cause error) error {
	t.close()
	if t.store.otherTransaction(cause) {
		return fmt.Errorf("%w: %w: the step did it itself, and began another", store.ErrOutcomeUnknown, store.ErrTxOwned)
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	for {
		rec, err := t.ask(ctx)
		switch {
		case err == nil:
			return t.learnedPoint(c, wanted, &rec, cause)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: commit: %w; then nobody could be asked what became of it: %w", store.ErrOutcomeUnknown, cause, err)
		}
		time.Sleep(askPause)
	}
}

// learnedPoint answers by what is stored: the point is there, or nothing was committed, or the attempt is fenced. A record
// that had the same point before the step, or is another attempt's by now, does not tell; then only a refusal by the server
// itself says that nothing was committed.
func (t *transaction) learnedPoint(c store.Claim, wanted, rec *store.Record, cause error) error {
	_, _, fenced := store.Step(*rec, store.Event{Kind: store.EventCheckpoint, Attempt: c.Attempt}, t.now)
	tells := fenced == nil && !samePoint(wanted, &t.before)
	switch {
	case tells && samePoint(wanted, rec):
		return nil
	case !tells && !refusedByServer(cause):
		return errors.Join(fmt.Errorf("%w: commit: %w; then the record did not tell what became of it", store.ErrOutcomeUnknown, cause), fenced)
	case fenced != nil:
		return fenced
	case undone(cause) || t.store.lostRace(cause):
		return fmt.Errorf("%w: %w", errAgain, cause)
	case t.store.refusedWork(cause):
		return fmt.Errorf("%w: commit: %w", store.ErrWorkRefused, cause)
	default:
		return unavailable(fmt.Errorf("commit: %w", cause))
	}
}

// samePoint reports whether two records are equally far.
func samePoint(a, b *store.Record) bool {
	return a.Point == b.Point && bytes.Equal(a.Data, b.Data) && a.NotReplayable == b.NotReplayable && a.ProviderID == b.ProviderID
}

// stateIdleTooLong is that of a transaction which the server put out before anything more was sent.
const stateIdleTooLong = "25P03"

// refusedByServer reports whether the server answered that it undid the transaction. Another error that ends the session
// does not say so.
func refusedByServer(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.SeverityUnlocalized == "ERROR" || pg.Code == stateIdleTooLong)
}
