package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/store"
)

// The second round trip of a transaction: the answer and COMMIT. The statements fail unless they write exactly one row in
// the transaction that took the lock, and so stop the commit: the column queue does not take the null that they would
// write in another transaction, and the number of records that were written is one, or not a number.
const (
	insertAnswer = `INSERT INTO @record (id, attempt, due, retention, answer, queue, request, more)
		VALUES ($1, nextval('@attempt'), @now() + $2, $3, $4, CASE WHEN transaction_timestamp() = $5 THEN $6::smallint END, $7, $8)
		RETURNING attempt, due`
	replaceAnswer = `WITH written AS (
			UPDATE @record SET attempt = nextval('@attempt'), due = @now() + $2, retention = $3, answer = $4,
				queue = CASE WHEN transaction_timestamp() = $5 THEN $6::smallint END, request = $7, more = $8
			WHERE id = $1 AND attempt = $9 AND queue = $10
			RETURNING attempt, due)
		SELECT min(attempt), min(due),
			CASE WHEN count(*) = 1 THEN 1 ELSE (count(*)::text || ' records of onceward were written')::integer END FROM written`
)

// settleTimeout bounds what follows the work.
const settleTimeout = 15 * time.Second

// settle ends the transaction as the work said, if it is still there to be ended.
func (t *transaction) settle(v store.Verdict, s store.Settlement) (store.Verdict, error) {
	status := t.status()
	switch {
	case t.gate.ended.Load() || status == statusIdle:
		return v, t.unknown("the handler ended the transaction that is not its to end")
	case status == statusLost:
		return v, unavailable(errors.New("the connection was lost before the work was done"))
	case s.Action != store.TxCommit && !t.same(status):
		return v, t.unknown("the handler ended the transaction that is not its to end, and began another")
	case s.Action == store.TxRollback:
		return t.undo(v)
	case s.Action == store.TxCommit && status == statusFailed:
		return v, t.unknown("the handler said that it succeeded in a transaction in which a statement had failed")
	case s.Action == store.TxCommitAnswer:
		return t.commitAnswer(v, &s.Completion)
	default:
		return t.commit(v, &s.Completion)
	}
}

// statusLost is that of a connection which is closed.
const statusLost = 0

func (t *transaction) status() byte {
	if t.conn.IsClosed() {
		return statusLost
	}
	return t.conn.PgConn().TxStatus()
}

// same reports whether the connection is still in the transaction that took the lock, as far as it can be asked. A commit
// asks in its own statement.
func (t *transaction) same(status byte) bool {
	if status != statusInTx {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	var began time.Time
	err := t.conn.QueryRow(ctx, `SELECT transaction_timestamp()`).Scan(&began)
	return err != nil || began.Equal(fromPostgresTime(t.began))
}

// undo rolls back. If a statement failed because of the neighbours, the work gets another chance.
func (t *transaction) undo(v store.Verdict) (store.Verdict, error) {
	if err := t.rollback(); err != nil {
		// Nothing was committed: the server undoes what it loses the connection of.
		t.close()
		return v, unavailable(err)
	}
	if t.gate.undone {
		return v, errAgain
	}
	v.Record = t.before
	return v, nil
}

// close gives the connection up.
func (t *transaction) close() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = t.conn.Close(ctx)
}

// commitAnswer undoes the work and stores the answer in a transaction that takes the lock again. Should somebody have been
// faster, what they stored counts: the work of this one is undone.
func (t *transaction) commitAnswer(v store.Verdict, done *store.Completion) (store.Verdict, error) {
	t.gate.messages = nil
	if err := t.rollback(); err != nil {
		t.close()
		return v, unavailable(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	locked, err := t.begin(ctx)
	if err != nil {
		return v, errors.Join(err, t.rollback())
	}
	decided, err := t.decide(locked)
	if err != nil || decided.Decision != store.DecisionExecute {
		return t.declined(decided, err)
	}
	decided.Origin = v.Origin
	return t.commit(decided, done)
}

// commit is the second round trip. Whatever error it meets, the store itself is asked what became of it.
func (t *transaction) commit(v store.Verdict, done *store.Completion) (store.Verdict, error) {
	complete := store.Event{Kind: store.EventComplete, Attempt: t.granted.Attempt, Completion: done}
	var err error
	if t.settled, _, err = store.Step(t.granted, complete, t.now); err != nil {
		return v, errors.Join(unavailable(fmt.Errorf("settle: %w", err)), t.rollback())
	}
	if !t.exists {
		t.settled.CreatedAt = t.settled.SettledAt // a transaction makes its record at its end
	}
	if err := t.send(time.Now().Add(settleTimeout), &t.settled); err != nil {
		return t.resolve(v, &t.settled, err)
	}
	v.Record = t.settled
	t.tell()
	return v, nil
}

// tell wakes those in this process who wait for messages, if the transaction that was committed added any.
func (t *transaction) tell() {
	if t.adds.Load() {
		t.store.messages.wake()
	}
}

// send stores the answer and commits. It fills in what the server gave out.
func (t *transaction) send(deadline time.Time, after *store.Record) error {
	var r row
	r.encode(after, t.hash, t.number)
	retention := unpackRetention(r.retention)
	sql := &t.store.sql
	trip := t.newTrip()
	if err := t.prepareDeferred(trip, deadline); err != nil {
		return err
	}
	t.addDeferred(trip)
	parameters := [...][]byte{
		t.hash[:], trip.int64(retention.Microseconds()), trip.int32(r.retention), r.answer, trip.int64(t.began), trip.int16(r.queue),
		r.request, r.more,
	}
	if t.exists {
		trip.unnamed = true // it is rare, and planned for what it finds
		trip.add(&sql.replaceAnswer, append(parameters[:], trip.int64(t.before.Attempt), trip.int16(queueOf(&t.before)))...)
	} else {
		trip.add(&sql.insertAnswer, parameters[:]...)
	}
	trip.add(&sql.commit)
	err := committed(trip.run(deadline, func(_ int, raw [][]byte) error {
		v := values{raw: raw}
		after.Attempt, after.ExpiresAt = v.int64(0), fromMicros(v.int64(1))
		return v.err
	}))
	after.Retention = retention
	after.SettledAt = after.ExpiresAt.Add(-retention)
	if !t.exists {
		after.CreatedAt = after.SettledAt
	}
	return err
}

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
