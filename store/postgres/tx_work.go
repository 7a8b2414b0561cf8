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

// InTx runs work in a transaction, which work takes from its context with [Tx] or [onceward.Tx], and commits if work returns
// nil. Work does not end the transaction itself. It may be called again after a rollback that was not its own doing, never
// after a commit. Messages that it adds to the outbox go along with COMMIT, and take the locks of their aggregates only then. The
// error wraps [onceward.ErrOutcomeUnknown] if the reply to COMMIT was lost.
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
	t.defers = true
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
	if err := t.prepareDeferred(trip, deadline); err != nil {
		return t.undoStep(unavailable(err))
	}
	t.addDeferred(trip)
	return t.commitPlain(trip, deadline)
}

// commitPlain sends the work's messages and COMMIT.
func (t *transaction) commitPlain(trip *pipeline, deadline time.Time) error {
	trip.unnamed = true // the work may have discarded what was prepared
	trip.add(&t.store.sql.commit)
	tag, err := trip.run(deadline, func(int, [][]byte) error { return nil })
	if err != nil {
		err = errors.Join(err, t.rollback()) // a message that was refused leaves the transaction open
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
		t.abandon()
		return fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, err)
	}
}

// cancelWaiting ends a statement that adds a message and waits for its aggregate. It is asked for by name: what a session is busy with
// otherwise, such as a commit that waits for a standby, is not to be cut off.
const cancelWaiting = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
	WHERE pid = $1 AND wait_event_type = 'Lock' AND wait_event = 'advisory' AND starts_with(query, $2)`

// abandon gives the connection up. A message that still waits for another transaction would keep what the work has locked for as
// long, and commit after all.
func (t *transaction) abandon() {
	t.close()
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	prefix := t.store.names.render(`INSERT INTO @outbox `)
	_, _ = t.store.own.Exec(ctx, cancelWaiting, int32(t.conn.PgConn().PID()), prefix) // the outcome is unknown either way
}
