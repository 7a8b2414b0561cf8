package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// Each transaction that the store runs for a caller takes the same steps: it acquires a connection, begins, decides,
// gives the work access through a gate, checks the state of the transaction when the work has returned, and commits or
// rolls back. [Store.Transact], [Store.CheckpointTx] and [Store.InTx] differ only in their plans.

// plan is one kind of transaction. It embeds its transaction, whose methods are the defaults, for a
// transaction without a record.
type plan interface {
	// decide reports whether the work is run, from what the first round trip has read.
	decide(locked bool) (run bool, err error)
	// declined returns the error of a call whose work is not run, if any. The transaction was rolled back before.
	declined() error
	// work calls the caller's work. An error is the work's own, and comes with [store.TxRollback].
	work(ctx context.Context) (store.TxAction, error)
	// prepare prepares the writes that are sent with COMMIT, before anything is sent.
	prepare(trip *pipeline, deadline time.Time) error
	// write adds these writes to the last round trip, and read reads their replies.
	write(trip *pipeline)
	read(statement int, raw [][]byte) error
	// learned returns the error of a call whose commit ended in an error, or nil, from the fate of the transaction and
	// the record that was found afterwards.
	learned(rec *store.Record, became fate, cause error) error
	// spoiled returns the error of work that has ended the transaction itself, or has not noticed that the transaction
	// had failed. The cause is the work's own error.
	spoiled(reason, cause error) error
}

// transaction is one try of a transaction that the store runs.
type transaction struct {
	plan  plan
	store *Store

	// keyed means that the transaction takes the lock of a key. id is the ID of its record, hash is the record's name
	// in the table, and lease is the time after which the server may end the transaction.
	keyed bool
	id    store.ID
	hash  [16]byte
	lease time.Duration
	// level is the isolation level of the transaction.
	level sql.IsolationLevel

	acquired acquired
	conn     *pgx.Conn
	view
	gate *gate    // set when the work begins
	trip pipeline // the current round trip
	// foundStep is the step in the record when the server was asked for the fate of the transaction.
	foundStep int64
	// lostHistory means that the server that was asked for the transaction's fate has never begun the transaction.
	lostHistory bool
	// answers means that there will be an answer, to which the work may add messages.
	answers bool

	// longest is how long the work may take, or zero for no limit. limit revokes the transaction of work that takes
	// longer: late is then the error of the call, and released means that the connection was released.
	longest  time.Duration
	limit    sqltx.Limit
	late     error
	released bool
	flight   *sqltx.Flight
}

// view is what a transaction has read at its beginning.
type view struct {
	began  int64 // by the server's clock: no other transaction of this connection has the same
	token  int64 // drawn for this transaction alone; zero if there is an answer to be replayed
	number int64 // of the transaction, as the server knows it; zero with the token
	now    time.Time
	before store.Record
	xmin   []byte // of the row of before: each change of the row changes it
	exists bool
}

// The defaults of a plan.

func (t *transaction) decide(bool) (run bool, err error)  { return true, nil }
func (t *transaction) declined() error                    { return nil }
func (t *transaction) prepare(*pipeline, time.Time) error { return nil }
func (t *transaction) read(int, [][]byte) error           { return nil }
func (t *transaction) learned(_ *store.Record, _ fate, err error) error {
	return t.store.notCommitted(err)
}

func (t *transaction) spoiled(reason, cause error) error {
	if reason == errOverlooked {
		return t.undo(reason) // nothing was committed
	}
	return errors.Join(fmt.Errorf("%w: %w: %w", store.ErrOutcomeUnknown, store.ErrTxOwned, reason), cause)
}

// retry runs tries until one is not undone by the server: see [sqltx.Retry].
func (s *Store) retry(ctx context.Context, startOnly bool, try func(ctx context.Context) error) error {
	gaveUp, err := sqltx.Retry(ctx, startOnly, try)
	if gaveUp {
		return unavailable(err)
	}
	return err
}

// try runs the transaction once.
func (t *transaction) try(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	if t.acquired, err = t.store.acquire(ctx); err != nil {
		return unavailable(err)
	}
	t.conn = t.acquired.pgx()
	defer t.release()
	locked, err := t.begin(ctx)
	if err == nil {
		err = unavailable(ctx.Err())
	}
	if err != nil {
		return t.notBegun(ctx, err)
	}
	if run, err := t.decided(locked); !run {
		return err
	}
	action, err := t.execute(ctx)
	if t.late != nil {
		return t.late
	}
	return t.finish(action, err)
}

// The first round trip of a transaction. The look-up is a separate statement after the lock: a statement that locked
// and looked at once would not see what the last holder of the lock has committed. If a node stops in the middle of a
// transaction, the server ends the transaction after a bounded idle time.
var (
	claim        = `SELECT ` + tryLock(`$1::bigint`) + `, transaction_timestamp()`
	claimBounded = claim + `, set_config('idle_in_transaction_session_timeout', $2, true)`
)

const (
	// lookUpAndDraw always returns a row. Unless there is an answer to be replayed, it draws the token that the
	// transaction stores at its end, so that the work has the token from the beginning, and reads the number of the
	// transaction, with which the server can be asked later for the outcome.
	lookUpAndDraw = `SELECT @now(), CASE WHEN r.state IS DISTINCT FROM 20 OR r.due <= @now() THEN nextval('@attempt') END,
			CASE WHEN r.state IS DISTINCT FROM 20 OR r.due <= @now() THEN pg_current_xact_id() END,
			r.xmin, ` + columns + `
		FROM (VALUES (1)) AS one LEFT JOIN @record r ON r.id = $1`
	// The columns of lookUpAndDraw.
	drawnNow, drawnToken, drawnNumber, drawnXmin, drawnRecord = 0, 1, 2, 3, 4
	// selectTransaction reads the number of the transaction if lookUpAndDraw is in another transaction.
	selectTransaction = `SELECT pg_current_xact_id()`
)

const (
	// idleGrace is how much longer than its lease an idle transaction may live.
	idleGrace = 5 * time.Second
	// plainIdle is how long a transaction without a lease may be idle. boundIdle sets that.
	plainIdle = 10 * time.Minute
	boundIdle = `SET LOCAL idle_in_transaction_session_timeout = '10min'`
)

// begin makes the first round trip: BEGIN and, for a keyed transaction, the lock and the look-up. A caller that leaves
// does not cut it off, because the server would keep the lock until it noticed.
//
// The user chooses the isolation level, so the snapshot may be older than the lock, and lack what the last holder has
// committed: the insert of the record then fails, and everything is undone and decided again. At SERIALIZABLE the
// look-up is in a transaction of its own: a page of the index that is read and written counts as a conflict there, even
// between transactions of different keys.
func (t *transaction) begin(ctx context.Context) (locked bool, err error) {
	sql := &t.store.sql
	trip := t.newTrip()
	deadline := sqltx.Undisturbed(ctx, settleTimeout)
	if err := trip.prepare(ctx, deadline, sql.transactional()...); err != nil {
		return false, unavailable(err)
	}
	trip.opens = true
	apart := t.keyed && t.serializable()
	if apart {
		trip.add(sql.begins[readCommittedLevel])
		trip.add(&sql.lookUpAndDraw, t.hash[:])
		trip.add(&sql.rollback)
	}
	trip.add(sql.begins[t.level])
	switch {
	case apart:
		t.claim(trip)
		trip.add(&sql.number)
	case t.keyed:
		t.claim(trip)
		trip.add(&sql.lookUpAndDraw, t.hash[:])
	default:
		if _, set := t.idle(); set {
			trip.add(&sql.boundIdle)
		}
	}
	seen := view{}
	found := row{id: t.hash}
	_, err = trip.run(deadline, func(_ int, raw [][]byte) error {
		v := values{raw: raw}
		switch len(raw) { // the number of columns distinguishes the statements
		case 1: // selectTransaction
			seen.number = v.int64(0)
		case 2, 3: // claim and claimBounded
			locked, seen.began = v.bool(0), v.int64(1)
		default:
			seen.now, seen.token, seen.number = fromMicros(v.int64(drawnNow)), v.int64(drawnToken), v.int64(drawnNumber)
			if seen.exists = v.column(drawnRecord) != nil; seen.exists {
				seen.xmin = v.bytes(drawnXmin)
				v.row(&found, drawnRecord)
			}
		}
		return v.err
	})
	t.view = seen
	if err != nil {
		return false, unavailable(err)
	}
	if t.exists {
		t.before, err = found.record(t.id)
	}
	return locked, err
}

// readCommittedLevel is the level of the store's own transactions.
const readCommittedLevel = sql.LevelReadCommitted

// serializable reports whether the transaction is at the strictest level.
func (t *transaction) serializable() bool {
	return t.level == sql.LevelSerializable || t.level == sql.LevelDefault && t.store.serializable
}

// claim adds the lock to the first round trip.
func (t *transaction) claim(trip *pipeline) {
	statement, parameters := &t.store.sql.claim, append(make([][]byte, 0, 2), trip.int64(t.store.lockKey(t.hash)))
	if idle, set := t.idle(); set {
		statement = &t.store.sql.claimBounded
		parameters = append(parameters, strconv.AppendInt(nil, idle.Milliseconds(), 10))
	}
	trip.add(statement, parameters...)
}

// newTrip begins a round trip on the transaction's connection.
func (t *transaction) newTrip() *pipeline {
	t.trip = pipeline{conn: t.conn, unnamed: t.store.unnamed}
	return &t.trip
}

// idle returns how long the transaction may be idle, and whether the transaction has to set that. It need not if its
// connection has a similar bound already.
func (t *transaction) idle() (idle time.Duration, set bool) {
	idle = plainIdle
	if t.keyed {
		idle = max(t.lease, time.Second) + idleGrace
	}
	return idle, t.store.idle == 0 || t.store.idle < t.lease || t.store.idle > 2*idle
}

// notBegun ends a transaction in which nothing was done because of an error at its beginning. The transaction is tried
// again if the connection turned out to be dead, if the statements prepared on it have been discarded, or if the
// server undid the transaction.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	noteStandby(t.conn, err)
	if sqlState(err) == stateNoSuchStatement {
		t.close()
	}
	if t.conn.IsClosed() && ctx.Err() == nil {
		return &sqltx.UndoneError{Cause: err, Early: true} // other connections of the pool may be dead too
	}
	failed := t.rollback()
	if undone(err) && failed == nil {
		return &sqltx.UndoneError{Cause: err, Early: true}
	}
	return errors.Join(err, failed)
}

// decided asks the plan whether the work is run, and rolls back if not.
func (t *transaction) decided(locked bool) (run bool, err error) {
	run, err = t.plan.decide(locked)
	if run && err == nil {
		return true, nil
	}
	if err := errors.Join(err, unavailable(t.rollback())); err != nil {
		return false, err
	}
	return false, t.plan.declined()
}

// execute calls the work with the transaction and closes the gate afterwards, even if the work
// panics or ends its goroutine.
func (t *transaction) execute(ctx context.Context) (action store.TxAction, err error) {
	returned := false
	defer func() {
		if !t.limit.Returned() {
			return
		}
		t.gate.Close(t.store.logger)
		if returned {
			return
		}
		if err := t.finish(store.TxRollback, nil); err != nil {
			t.store.logger.ErrorContext(ctx, "onceward: the transaction of work that panicked ended in an error", "error", err)
		}
	}()
	if t.longest > 0 {
		ctx = context.WithoutCancel(ctx) // only its limit ends the work
	}
	t.gate = newGate(t)
	t.limit.Start(t.longest, t)
	action, err = t.plan.work(t.gate.ctx.With(ctx, gateKey{}, t.gate))
	returned = true
	return action, err
}

// The errors of a transaction that the work has not left as it was.
var (
	errEnded      = errors.New("the work ended the transaction that is not its to end")
	errSwapped    = errors.New("the work ended the transaction that is not its to end, and began another")
	errOverlooked = errors.New("the work said that it succeeded in a transaction in which a statement had failed")
	errLost       = errors.New("the connection was lost before the work was done")
)

// finish ends the transaction as the work decided, if it can still be ended. The cause is the work's error.
func (t *transaction) finish(action store.TxAction, cause error) error {
	switch left := t.left(action); {
	case left == errLost:
		return unavailable(errors.Join(cmp.Or(t.gate.GaveUp, left), cause))
	case left != nil:
		_ = t.rollback()
		return t.plan.spoiled(left, cause)
	case t.gate.Conflict != nil:
		action = store.TxRollback // work that met a concurrent transaction is run again
	}
	switch action {
	case store.TxRollback:
		return t.undo(cause)
	case store.TxCommitAnswer:
		return t.commitAnswer()
	default:
		return t.commit()
	}
}

// left checks the state in which the work has left the transaction. A commit checks in its own statement whether it is
// still the same transaction.
func (t *transaction) left(action store.TxAction) error {
	status := t.status()
	switch {
	case t.gate.ended.Load() || status == statusIdle:
		return errEnded
	case status == statusLost:
		return errLost
	case action != store.TxCommit && t.keyed && !t.same(status):
		return errSwapped
	case action == store.TxCommit && status == statusFailed && t.gate.Conflict == nil:
		return errOverlooked
	}
	return nil
}

// statusLost is the status of a connection that is closed.
const statusLost = 0

func (t *transaction) status() byte {
	if t.conn.IsClosed() {
		return statusLost
	}
	return t.conn.PgConn().TxStatus()
}

// same reports whether the connection is still in the transaction that took the lock. It returns true if the
// connection cannot be asked.
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

// undo rolls back, and returns the cause. If a statement failed because of concurrent transactions, it returns an error
// that lets the work run again.
func (t *transaction) undo(cause error) error {
	err := t.rollback()
	if err != nil {
		t.close() // the server undoes a transaction whose connection is lost
	}
	switch {
	case err != nil && cause == nil:
		return unavailable(err)
	case t.gate.Conflict != nil:
		return &sqltx.UndoneError{Cause: errors.Join(t.gate.Conflict, cause)}
	default:
		return cause
	}
}

// rollback undoes the transaction.
func (t *transaction) rollback() error { return rollback(t.conn, settleTimeout) }

// close closes the connection.
func (t *transaction) close() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = t.conn.Close(ctx)
}

// release returns the connection, unless that was done when the transaction was revoked.
func (t *transaction) release() {
	if t.released {
		return
	}
	if t.late != nil {
		t.gate.Close(t.store.logger) // it stayed open because the work had the connection
		t.close()
	}
	t.acquired.release()
}
