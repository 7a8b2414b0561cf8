package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/store"
)

const (
	// awaitLock waits until the lock is free: the transaction that did is then certainly over. A standby has
	// locks of its own.
	awaitLock = `SELECT pg_is_in_recovery(), pg_advisory_xact_lock($1)`
	// underWay finds the transaction by its beginning. Where locks do nothing, as with some servers and poolers, it may
	// not be over yet. A server that does not tell is not asked: then the lock alone counts.
	underWay = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE xact_start = $1)`
	// askTimeout is how long the outcome of a commit is asked after, through restarts of the server.
	askTimeout = 20 * time.Second
	askPause   = 50 * time.Millisecond
)

// resolve finds out what became of a commit that ended in an error. No error is believed: the same lock is taken on another
// connection, so that the transaction is over, and then the record is asked for.
func (t *transaction) resolve(v store.Verdict, wanted *store.Record, cause error) (store.Verdict, error) {
	t.close()
	if t.store.otherTransaction(cause) {
		return v, t.unknown("the handler ended the transaction that is not its to end, and began another")
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	for {
		rec, err := t.ask(ctx)
		switch {
		case err == nil:
			return t.learned(v, wanted, &rec, cause)
		case ctx.Err() != nil:
			return v, fmt.Errorf("%w: commit: %w; then nobody could be asked what became of it: %w", store.ErrOutcomeUnknown, cause, err)
		}
		time.Sleep(askPause)
	}
}

// errUnderWay says that a transaction is not over.
var errUnderWay = errors.New("the transaction is still under way")

// ask looks the record up when the transaction is over. A record in StateNone stands for none.
func (t *transaction) ask(ctx context.Context) (store.Record, error) {
	conn, err := t.store.asking.Acquire(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer conn.Release()
	sql := &t.store.sql
	trip := pipeline{conn: conn.Conn(), unnamed: true}
	trip.add(&sql.begin)
	trip.add(&sql.awaitLock, trip.int64(lockKey(t.hash)))
	told := !t.store.secretive.Load()
	if told {
		trip.add(&sql.underWay, trip.int64(t.began))
	}
	trip.add(&sql.lookUp, t.hash[:])
	trip.add(&sql.commit)
	deadline, _ := ctx.Deadline()
	exists, found := false, row{id: t.hash}
	_, err = trip.run(deadline, func(statement int, raw [][]byte) error {
		v := values{raw: raw}
		switch {
		case statement == 1 && v.bool(0):
			return ErrStandby // it may not have heard of the commit yet
		case statement == 2 && told:
			if v.bool(0) {
				return errUnderWay
			}
		case statement > 1:
			exists = true
			found.read(&v, 1)
		}
		return v.err
	})
	if refusesToTell(err) {
		t.store.secretive.Store(true) // the next question is without it
	}
	noteStandby(conn.Conn(), err)
	if err != nil || !exists {
		return store.Record{}, err
	}
	return found.record(t.reservation.ID, t.store.operations.name)
}

// refusesToTell reports whether a server has no activity to look at, or not for this user.
func refusesToTell(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) &&
		(refused.Code == stateInsufficientRights || refused.Code == stateUndefinedTable)
}

// learned answers by what is stored. If the commit did not land nothing was executed; what somebody else has stored since
// is decided again.
func (t *transaction) learned(v store.Verdict, wanted, rec *store.Record, cause error) (store.Verdict, error) {
	if t.landed(wanted, rec) {
		v.Record = *rec
		return v, nil
	}
	if undone(cause) || t.store.lostRace(cause) {
		return v, fmt.Errorf("%w: %w", errAgain, cause)
	}
	if t.store.refusedWork(cause) && rec.Attempt == t.before.Attempt {
		return v, fmt.Errorf("%w: commit: %w", store.ErrWorkRefused, cause)
	}
	return v, unavailable(fmt.Errorf("commit: %w", cause))
}

// landed reports whether the stored record is the one that was to be stored. One that says the same of the same request
// was either made by this transaction or makes no difference.
func (t *transaction) landed(wanted, rec *store.Record) bool {
	return rec.State == store.StateCompleted && rec.Fingerprint == wanted.Fingerprint &&
		rec.Response.Equal(&wanted.Response) && rec.Attempt != t.before.Attempt
}

// unknown ends the transaction, and records that it is not known what became of the work.
func (t *transaction) unknown(reason string) error {
	_ = t.rollback()
	return t.recordUnknown(reason)
}

// recordUnknown records, in a transaction of its own, that it is not known what became of the work.
func (t *transaction) recordUnknown(reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	claimed, err := t.store.change(ctx, t.reservation.ID, store.Event{Kind: store.EventReserve, Reservation: t.reservation})
	if err == nil && claimed.outcome.Decision == store.DecisionExecute {
		_, err = t.store.change(ctx, t.reservation.ID, store.Event{
			Kind: store.EventAbandon, Attempt: claimed.after.Attempt, Reason: reason,
		})
	}
	return errors.Join(fmt.Errorf("%w: %s", store.ErrOutcomeUnknown, reason), err)
}
