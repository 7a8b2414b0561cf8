package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	if err := t.prepareMessages(trip, deadline); err != nil {
		return err
	}
	t.addMessages(trip)
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
