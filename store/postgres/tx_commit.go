package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// settleTimeout bounds the calls to the server after the work.
const settleTimeout = 15 * time.Second

// commit makes the last round trip: the messages of the answer, the writes of the plan, and COMMIT.
func (t *transaction) commit() error {
	trip, deadline := t.newTrip(), time.Now().Add(settleTimeout)
	err := t.plan.prepare(trip, deadline)
	if err == nil {
		err = unavailable(t.prepareMessages(trip, deadline))
	}
	if err != nil {
		t.gate.meet(err)
		return t.undo(err)
	}
	t.addMessages(trip)
	t.plan.write(trip)
	trip.add(&t.store.sql.commit)
	switch err = trip.runCommit(deadline, t.plan.read); {
	case err != nil:
		err = t.resolve(err)
	case trip.warned: // the commit may not have waited for its standbys
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		if err = replicated(ctx, t.store.asking); err != nil {
			err = fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, err)
		}
	}
	if err == nil && t.gate.adds.Load() {
		t.store.messages.Wake() // wakes workers of this process that wait for messages
	}
	return err
}

// commitAnswer undoes the work and stores its answer in a new transaction, which takes the lock again. If another
// transaction was faster, its result counts, because the work of this one is undone.
func (t *transaction) commitAnswer() error {
	t.gate.messages = nil
	if err := t.rollback(); err != nil {
		t.close()
		return unavailable(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	locked, err := t.begin(ctx)
	if err != nil {
		failed := t.rollback()
		if undone(err) && failed == nil {
			return &sqltx.UndoneError{Cause: err}
		}
		return errors.Join(err, failed)
	}
	if run, err := t.decided(locked); !run {
		return err
	}
	return t.commit()
}

// errRolledBack is the error of a COMMIT that the server turned into a ROLLBACK.
var errRolledBack = errors.New("the server answered COMMIT with ROLLBACK")

// runCommit makes a round trip whose last statement is COMMIT, and checks that the server committed.
func (p *pipeline) runCommit(deadline time.Time, read func(statement int, values [][]byte) error) error {
	tag, err := p.run(deadline, read)
	switch {
	case err != nil || string(tag) == "COMMIT":
		return err
	case string(tag) == "ROLLBACK":
		return errRolledBack
	default:
		return p.broken(fmt.Errorf("%w: %s for COMMIT", errForeignReply, tag))
	}
}

// resolve finds out the outcome of a commit that ended in an error. If there is a record, resolve does not
// rely on the error: it takes the same lock on another connection, so that the transaction is over, and then
// asks the server for its fate.
func (t *transaction) resolve(cause error) error {
	if !t.keyed {
		return t.believe(cause)
	}
	t.close()
	if t.store.otherTransaction(cause) {
		return t.plan.spoiled(errSwapped, nil)
	}
	var rec store.Record
	var became fate
	err := learn(context.Background(), func(ctx context.Context) (err error) {
		rec, became, err = t.ask(ctx)
		if err == nil && (became == fateCommitted || rec.State != store.StateNone) {
			err = replicated(ctx, t.store.asking)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: commit: %w; then the server could not be asked what became of it: %w",
			store.ErrOutcomeUnknown, cause, err)
	}
	return t.plan.learned(&rec, became, cause)
}

// believe returns the error of a failed commit that no record shows. A commit that the server itself refused was not
// made; the transaction may still be open.
func (t *transaction) believe(cause error) error {
	if undone(cause) || refusedByServer(cause) {
		return t.store.notCommitted(errors.Join(cause, t.rollback()))
	}
	t.close()
	return fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, cause)
}

// notCommitted returns the error of a transaction that was certainly not committed, for the error of the server.
func (s *Store) notCommitted(cause error) error {
	switch {
	case undone(cause) || s.lostRace(cause):
		return &sqltx.UndoneError{Cause: fmt.Errorf("commit: %w", cause)}
	case s.refusedWork(cause):
		return fmt.Errorf("%w: commit: %w", store.ErrWorkRefused, cause)
	default:
		return unavailable(fmt.Errorf("commit: %w", cause))
	}
}

// stateIdleTooLong is the SQL state of a transaction that the server ended because it was idle for too long, before a
// further statement was sent.
const stateIdleTooLong = "25P03"

// refusedByServer reports whether the server answered that it undid the transaction. Other errors that end the
// session do not mean that.
func refusedByServer(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, errRolledBack) ||
		errors.As(err, &pg) && (pg.SeverityUnlocalized == "ERROR" || pg.Code == stateIdleTooLong)
}

// awaitLock waits until the lock is free: the transaction that held it is then certainly over. A
// standby has locks of its own.
var awaitLock = `SELECT pg_is_in_recovery(), ` + takeLock(`$1::bigint`)

const (
	// askFate asks the server for the outcome of a transaction.
	askFate = `SELECT pg_xact_status($1)`
	lookUp  = `SELECT ` + columns + ` FROM @record WHERE id = $1`
	// stateFuture is the SQL state with which askFate fails if the server has never begun such a transaction: the
	// server has replaced the one that began it, and does not have the commit.
	stateFuture = "22023"
)

// fate is the outcome of a transaction, as the server reports it.
type fate string

// The fates of a transaction. Any other value means that the server has forgotten it. After a fail-over that lost the
// transaction, its number may belong to another transaction, so fateCommitted does not count if the record shows the
// opposite. A transaction that was committed on the server that answers is never fateUndone.
const (
	fateCommitted fate = "committed"
	fateUndone    fate = "aborted"
	fateUnderWay  fate = "in progress"
)

// errUnderWay is the error of a transaction that is not over.
var errUnderWay = errors.New("the transaction is still under way")

// unknown returns the error of a transaction of which no more is known than its fate, if the server knows that.
func (f fate) unknown(cause error) error {
	return fmt.Errorf("%w: commit: %w; by the server the transaction is %q", store.ErrOutcomeUnknown, cause, string(f))
}

// The numbers of the statements of ask whose replies are read. If the server does not know the transaction, askFate is
// not sent, and the look-up has its number.
const askedLock, askedFate, askedRecord = 1, 3, 4

// ask waits until the transaction is over, asks the server for its fate, and reads the record. A record in StateNone
// means that there is none, which proves nothing: the record may have been removed. ask waits for the lock in a
// transaction of its own: if every transaction sees the state at its beginning, a transaction that began to wait before
// the commit would not see the record.
func (t *transaction) ask(ctx context.Context) (rec store.Record, became fate, err error) {
	conn, err := t.store.asking.Acquire(ctx)
	if err != nil {
		return rec, became, err
	}
	defer conn.Release()
	sql := &t.store.sql
	trip := pipeline{conn: conn.Conn(), unnamed: true}
	trip.add(sql.begins[readCommittedLevel])
	trip.add(&sql.awaitLock, trip.int64(t.store.lockKey(t.hash)))
	trip.add(&sql.commit)
	if t.lostHistory {
		became = fateUndone
	} else {
		trip.add(&sql.askFate, trip.int64(t.number))
	}
	trip.add(&sql.lookUp, t.hash[:])
	deadline, _ := ctx.Deadline()
	exists, found := false, row{id: t.hash}
	defer func() { t.foundStep = int64(found.step) }()
	_, err = trip.run(deadline, func(statement int, raw [][]byte) error {
		v := values{raw: raw}
		switch {
		case statement == askedLock && v.bool(0):
			return ErrStandby // it may not have the commit yet
		case statement == askedFate && !t.lostHistory:
			if became = fate(v.bytes(0)); became == fateUnderWay {
				return errUnderWay
			}
		case statement == askedRecord, statement == askedFate:
			exists = true
			v.row(&found, 0)
		}
		return v.err
	})
	t.lostHistory = t.lostHistory || sqlState(err) == stateFuture
	noteStandby(conn.Conn(), err)
	if err == nil && exists {
		rec, err = found.record(t.id)
	}
	return rec, became, err
}
