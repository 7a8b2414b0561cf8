package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// A transaction that the store runs for a caller goes one way: it takes a connection, begins, decides, hands the
// transaction to the work through a gate, and commits or rolls back what the work has left of it. [Store.Transact],
// [Store.CheckpointTx], [Store.FinishMessageTx] and [Store.InTx] differ in their plans alone.

// plan is what distinguishes one kind of transaction from the others. It embeds its transaction, whose methods are the
// defaults: those of a transaction without a record.
type plan interface {
	// claim is what the first round trip does, read takes the rows that come back, and decide says by them, or by the
	// error that stopped it, whether the work is run.
	claim() []statement
	read(row []sqldriver.Value) error
	decide(cause error) (run bool, err error)
	// declined says how the call ends if the work is not run. The transaction is rolled back by then.
	declined() error
	// work calls the caller's work. The error is the work's own; one with which everything is to be undone.
	work(ctx context.Context) (store.TxAction, error)
	// prepare makes ready what is written together with COMMIT, and may use the connection for it.
	prepare() error
	// write is what is written together with COMMIT, and wrote reads the LAST_INSERT_ID of each statement.
	write() []statement
	wrote(ids []int64)
	// learned says what became of a commit that ended in an error, or errNotLearned.
	learned(ctx context.Context, cause error) error
	// spoiled is the error of work that has ended the transaction itself. The cause is the work's own error.
	spoiled(reason, cause error) error
}

// transaction is one try of a transaction that the store runs.
type transaction struct {
	plan  plan
	store *Store
	link  *link
	gate  gate

	// keyed says that there is a record, which tells what became of the transaction, and id which.
	keyed bool
	id    store.ID
	// level is that of the transaction.
	level sql.IsolationLevel
	// lease is the time after which the server may end a transaction that is idle.
	lease time.Duration
	// answers says that there will be an answer, to which the work may add messages; adds, that it added any.
	answers bool
	adds    atomic.Bool
	// session is the server's number of the connection, and node which server that is; both are known where there is a
	// record.
	session int64
	node    string
	// began is when the connection was taken.
	began time.Time

	// longest is how long the work may take, zero for as long as it likes, and limit revokes the transaction of work that
	// takes longer: then late says what that came to, and released that the connection is released.
	longest  time.Duration
	limit    sqltx.Limit
	late     error
	released bool
	flight   *sqltx.Flight
}

// The defaults of a plan.

func (t *transaction) read([]sqldriver.Value) error                 { return nil }
func (t *transaction) decide(cause error) (bool, error)             { return cause == nil, cause }
func (t *transaction) declined() error                              { return nil }
func (t *transaction) prepare() error                               { return nil }
func (t *transaction) write() []statement                           { return nil }
func (t *transaction) wrote([]int64)                                {}
func (t *transaction) learned(_ context.Context, cause error) error { return t.believe(cause) }
func (t *transaction) spoiled(reason, cause error) error {
	return errors.Join(fmt.Errorf("%w: %w: %w", store.ErrOutcomeUnknown, store.ErrTxOwned, reason), cause)
}

// retry runs tries until one is not undone by the server: see [sqltx.Retry].
func retry(ctx context.Context, startOnly bool, try func(ctx context.Context) error) error {
	gaveUp, err := sqltx.Retry(ctx, startOnly, try)
	if gaveUp {
		return unavailable(err)
	}
	return err
}

// try runs the transaction once.
func (t *transaction) try(ctx context.Context) (err error) {
	if err := left(ctx); err != nil {
		return err
	}
	within, _ := store.Value(ctx, gateKey{}).(*gate)
	give, err := t.store.slots.Take(ctx, within != nil && within.t.store == t.store)
	if err != nil {
		return unavailable(err)
	}
	if t.link, err = connect(ctx, &t.store.handlersGate, t.store.handlers, t.store.joins); err != nil {
		give()
		return unavailable(err)
	}
	t.link.give = give
	defer t.release()
	t.began = time.Now()
	if t.keyed {
		t.session, t.node = t.link.session()
	}
	cause := t.begin(ctx)
	if on, ok := t.link.raw.(*session); ok && on.hangs(cause) {
		t.store.leaveNode()
	}
	if t.link.lost() {
		return t.notBegun(ctx, cause)
	}
	if run, err := t.decided(ctx, cause); !run {
		return err
	}
	action, err := t.execute(ctx)
	if t.late != nil {
		return t.late
	}
	return t.finish(action, err)
}

// The store's savepoint marks the transaction: it is gone if the transaction was ended, whoever did it and whatever was
// begun since, and then what names it is an SQL error that stops a commit.
var (
	setSavepoint     = stmt(`SAVEPOINT onceward_begun`)
	releaseSavepoint = stmt(`RELEASE SAVEPOINT onceward_begun`)
	toSavepoint      = stmt(`ROLLBACK TO SAVEPOINT onceward_begun`)
	commit           = stmt(`COMMIT`)
	rollback         = stmt(`ROLLBACK`)
)

// thisNode tells one server of a cluster from the others.
const thisNode = `CONCAT(@@hostname, ':', @@port)`

// errorNoSavepoint is that of a savepoint which is gone.
const errorNoSavepoint = 1305

// The session of a transaction. A statement that fails with a deadlock ends the transaction: with autocommit off what
// follows it is part of another one, and is undone, instead of being committed by itself. A node that stops in
// mid-transaction is put out by the server when it has been idle for too long. How long a statement waits for a row is
// the user's setting for the statements of the work, and short for those of the store.
const (
	// setBorrowed sets a connection of the application, and returnBorrowed gives it back as it was.
	keepBorrowed = `SET @onceward_autocommit = @@autocommit, @onceward_lock_wait = @@innodb_lock_wait_timeout,
		@onceward_idle = @@wait_timeout`
	setBorrowed    = `SET SESSION autocommit = 0, innodb_lock_wait_timeout = ?, wait_timeout = ?`
	returnBorrowed = `SET SESSION autocommit = @onceward_autocommit, innodb_lock_wait_timeout = @onceward_lock_wait,
		wait_timeout = @onceward_idle`
	// keepLockWait is keepBorrowed for a connection of the store.
	keepLockWait = `SET @onceward_lock_wait = @@innodb_lock_wait_timeout`
	// setIdle sets how long a connection of the store may be idle.
	setIdle = `SET SESSION wait_timeout = ?`
)

// setHandlers sets the sessions of the store's own connections for handlers.
var setHandlers = fmt.Sprintf(`SET SESSION autocommit = 0, innodb_lock_wait_timeout = %d, wait_timeout = %d`, lockWait,
	int(handlersIdle.Seconds()))

const (
	// idleGrace is how much longer than its lease an idle transaction may live.
	idleGrace = 5 * time.Second
	// handlersIdle is how long a connection for handlers may be idle: twice as long as a usual lease.
	handlersIdle = 70 * time.Second
	// plainIdle is how long a transaction may be idle that has no lease.
	plainIdle = 10 * time.Minute
)

var (
	patient   = stmt(`SET SESSION innodb_lock_wait_timeout = @onceward_lock_wait`)
	impatient = stmt(`SET SESSION innodb_lock_wait_timeout = ?`, lockWait)
)

// beginning are the statements that come first in a transaction.
func (t *transaction) beginning() []statement {
	idle, set := t.idle()
	switch {
	case !t.store.opened:
		return []statement{stmt(keepBorrowed), stmt(setBorrowed, lockWait, idle)}
	case set:
		return []statement{stmt(setIdle, idle)}
	default:
		return nil
	}
}

// ending is how a transaction ends by these statements: the connection is what it was before.
func (t *transaction) ending(statements ...statement) []statement {
	statements = append([]statement{impatient}, statements...)
	if _, set := t.idle(); !t.store.opened {
		statements = append(statements, stmt(returnBorrowed))
	} else if set {
		statements = append(statements, stmt(setIdle, int(handlersIdle.Seconds())))
	}
	return statements
}

// idle is how many seconds the transaction may be idle, and whether that has to be said: the store's own connections
// are bounded by themselves at about what is usual.
func (t *transaction) idle() (seconds int, set bool) {
	idle := plainIdle
	if t.lease > 0 {
		idle = max(t.lease, time.Second) + idleGrace
	}
	return int(math.Ceil(idle.Seconds())), idle > handlersIdle || 2*idle < handlersIdle
}

// begin is the first round trip: what the plan claims, and the savepoint. A caller who
// leaves does not cut it off, because the server would keep what is locked until it noticed.
func (t *transaction) begin(ctx context.Context) error {
	statements := append(t.beginning(), t.plan.claim()...)
	return t.link.query(sqltx.Undisturbed(ctx, settleTimeout), t.plan.read, append(statements, patient, setSavepoint)...)
}

// notBegun ends a transaction whose connection was lost at its beginning: nothing was done. It is worth another try if
// the connection turned out dead.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return &sqltx.UndoneError{Cause: err, Early: true}
	}
	return unavailable(err)
}

// decided asks the plan whether the work is run, and rolls back if not. An error that says the node takes no writes
// makes the pool look for another one.
func (t *transaction) decided(ctx context.Context, cause error) (run bool, err error) {
	run, err = t.plan.decide(cause)
	if run && err == nil {
		if err = left(ctx); err == nil {
			return true, nil
		}
	}
	if unfit(err) {
		t.link.cut()
		t.store.leaveNode()
		return false, &sqltx.UndoneError{Cause: err, Early: true}
	}
	if undone(err) {
		err = &sqltx.UndoneError{Cause: err, Early: true}
	}
	if failure := t.rollback(); failure != nil {
		t.link.cut() // the server undoes what it loses the connection of
	}
	if err != nil {
		if _, again := err.(*sqltx.UndoneError); !again {
			err = unavailableUnlessRefused(err)
		}
		return false, err
	}
	return false, t.plan.declined()
}

// unavailableUnlessRefused wraps an error of the database, and leaves one of the model as it is.
func unavailableUnlessRefused(err error) error {
	if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalidEvent) {
		return err
	}
	return unavailable(err)
}

// execute hands the transaction to the work and closes the gate behind it, also if the work panics or ends its
// goroutine.
func (t *transaction) execute(ctx context.Context) (action store.TxAction, err error) {
	returned := false
	defer func() {
		if !t.limit.Returned() {
			return
		}
		t.gate.Close(t.store.logger)
		if !returned && t.rollback() != nil {
			t.link.cut()
		}
	}()
	if t.longest > 0 {
		ctx = context.WithoutCancel(ctx) // its limit alone ends the work
	}
	t.gate.t = t
	t.limit.Start(t.longest, t)
	action, err = t.plan.work(t.gate.ctx.With(ctx, gateKey{}, &t.gate))
	returned = true
	return action, err
}

// What work may leave of its transaction.
var (
	errEnded  = errors.New("the work ended the transaction that is not its to end")
	errLost   = errors.New("the connection was lost before the work was done")
	errCalled = errors.New("the connection was lost behind a statement that may have ended the transaction")
	errUndone = errors.New("the server undid a transaction behind a statement that may have ended it")
)

// finish ends the transaction as the work said. The cause is the work's error.
func (t *transaction) finish(action store.TxAction, cause error) error {
	if t.link.lost() {
		t.kill() // so that its key is free
	}
	switch {
	case t.link.lost() && t.gate.Ending.Load():
		return t.plan.spoiled(errCalled, cause)
	case t.link.lost() && t.gate.Conflict != nil:
		return &sqltx.UndoneError{Cause: errors.Join(errLost, t.gate.Conflict, cause)}
	case t.link.lost():
		return unavailable(errors.Join(cmp.Or(t.gate.GaveUp, errLost), cause))
	case t.gate.gone: // what came after it was refused
		return t.gone(nil, cause)
	case t.gate.Conflict != nil:
		action = store.TxRollback // work that has answered an error of its neighbours is run again
	}
	switch action {
	case store.TxRollback:
		return t.undo(cause, releaseSavepoint, rollback)
	case store.TxCommitAnswer:
		t.gate.messages = nil
		return t.commit(toSavepoint, releaseSavepoint)
	default:
		return t.commit(releaseSavepoint)
	}
}

// gone ends a transaction that the server has undone, with its savepoint, because of another one: by the conflict that
// the work has met, or by this one.
func (t *transaction) gone(conflict, cause error) error {
	if t.gate.Ending.Load() {
		_ = t.rollback()
		return t.plan.spoiled(errUndone, cause)
	}
	t.gate.Meet(conflict)
	return t.undo(cause, rollback)
}

// undo rolls back, and returns the cause. If a statement failed because of the neighbours, the work gets another
// chance.
func (t *transaction) undo(cause error, statements ...statement) error {
	_, err := t.link.exec(time.Now().Add(settleTimeout), t.ending(statements...)...)
	if mysqlNumber(err) == errorNoSavepoint {
		_ = t.rollback()
		return t.plan.spoiled(errEnded, cause)
	}
	if err != nil {
		t.link.cut() // the server undoes what it loses the connection of
	}
	if undone(err) {
		t.gate.Meet(err)
	}
	if t.gate.Conflict != nil {
		return &sqltx.UndoneError{Cause: errors.Join(t.gate.Conflict, cause)}
	}
	return cause
}

// rollback ends the transaction without a trace.
func (t *transaction) rollback() error {
	if t.link.lost() {
		return nil
	}
	_, err := t.link.exec(time.Now().Add(settleTimeout), t.ending(rollback)...)
	return err
}

// release returns the connection, unless that was done when the transaction was revoked.
func (t *transaction) release() {
	if !t.released {
		t.link.release()
	}
}

// errLateEnded is what becomes of late work that may have ended the transaction itself.
var errLateEnded = errors.New("the work may have ended the transaction that is not its to end, and did not return")

// Revoke implements [sqltx.Revocable].
func (t *transaction) Revoke() {
	quiet := false
	quiet, t.late = t.undoLate()
	if t.flight != nil {
		t.store.flights.Leave(t.id, t.flight)
	}
	t.store.waits.Wake(t.id)
	if !quiet {
		t.gate.Close(t.store.logger) // which waits as long as the call under way takes
	}
	t.link.cut() // it is not used again: late work may know it
	t.link.release()
	t.released = true
}

// undoLate ends the transaction, and returns what that came to. It reports whether the work is done with the
// connection.
func (t *transaction) undoLate() (quiet bool, err error) {
	t.gate.Lock()
	if t.gate.Seize(t.store.logger, func() bool { return true }) {
		if err := t.finish(store.TxRollback, nil); errors.Is(err, store.ErrOutcomeUnknown) {
			return true, err
		}
		return true, unavailable(sqltx.ErrLate)
	}
	t.gate.interrupt()
	t.kill()
	t.awaitUndone()
	quiet = t.gate.SeizeCut(t.store.logger)
	if t.gate.Ending.Load() {
		return quiet, t.plan.spoiled(errLateEnded, nil)
	}
	return quiet, unavailable(sqltx.ErrLate)
}

// kill tells the server to end the connection of the transaction, if it is still at it: it would go on with a statement
// to its end, and it does not hear at once of a connection that was cut. Another server would end another's, and so
// would this one if it was restarted since: its connections are then counted from one again.
func (t *transaction) kill() {
	if t.session == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = t.store.with(ctx, func(conn *sql.Conn) error {
		var node, name string
		var uptime float64
		err := errors.Join(conn.QueryRowContext(ctx, `SELECT `+thisNode).Scan(&node),
			conn.QueryRowContext(ctx, selectUptime).Scan(&name, &uptime))
		if err == nil && node == t.node && uptime-1 >= time.Since(t.began).Seconds() {
			_, err = conn.ExecContext(ctx, `KILL CONNECTION `+strconv.FormatInt(t.session, 10))
		}
		return err // it may be gone, which is what is wanted
	})
}

// selectUptime asks for how many seconds the server has been there. It is the difference of two times in whole seconds.
const selectUptime = `SHOW GLOBAL STATUS LIKE 'Uptime'`

// awaitUndone waits until the server has undone what it was told to end: it says that it will, and not that it has, and
// until then the key is locked.
func (t *transaction) awaitUndone() {
	if !t.keyed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	for n := 1; ; n++ {
		over, err := t.store.unlocked(ctx, t.id)
		if over || err != nil || !backoff.Sleep(ctx, backoff.Exponential(askPause, maxAskPause, n)) {
			return
		}
	}
}

// lookTimeout bounds a look at the server on the side.
const lookTimeout = 5 * time.Second
