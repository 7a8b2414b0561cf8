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

// Every transaction that the store runs for a caller takes the same steps: it takes a connection, begins, decides,
// passes the transaction to the work through a gate, and commits or rolls back. [Store.Transact], [Store.CheckpointTx],
// [Store.FinishMessageTx] and [Store.InTx] differ only in their plans.

// plan is what distinguishes one kind of transaction from the others. It embeds its transaction, whose methods are the
// defaults, for a transaction without a record.
type plan interface {
	// claim returns the statements of the first round trip, and read takes the rows that they return. decide decides
	// whether the work is run, by these rows or by the error that stopped the round trip.
	claim() []statement
	read(row []sqldriver.Value) error
	decide(cause error) (run bool, err error)
	// declined returns the result of the call if the work is not run. The transaction is rolled back by then.
	declined() error
	// work calls the caller's work, and returns the work's own error. With an error everything is undone.
	work(ctx context.Context) (store.TxAction, error)
	// prepare prepares what is written together with COMMIT, and may use the connection for it.
	prepare() error
	// write returns the statements that are sent together with COMMIT, and wrote reads the LAST_INSERT_ID of each.
	write() []statement
	wrote(ids []int64)
	// learned returns the outcome of a commit that ended in an error, or errNotLearned.
	learned(ctx context.Context, cause error) error
	// spoiled returns the error of work that has ended the transaction itself. The cause is the work's own error.
	spoiled(reason, cause error) error
}

// transaction is one try of a transaction that the store runs.
type transaction struct {
	plan  plan
	store *Store
	link  *link
	gate  gate

	// keyed means that there is a record, which shows the outcome of the transaction. id is the ID of the record.
	keyed bool
	id    store.ID
	// level is the isolation level of the transaction.
	level sql.IsolationLevel
	// lease is the time after which the server may end an idle transaction.
	lease time.Duration
	// answers means that there will be an answer, to which the
	// work may add messages. adds means that it added messages.
	answers bool
	adds    atomic.Bool
	// session is the server's number of the connection, and node
	// identifies the server. Both are known if there is a record.
	session int64
	node    string
	// began is the time at which the connection was taken.
	began time.Time

	// longest is how long the work may take, or zero for no limit. limit revokes the transaction of work that takes
	// longer. Then late is the error of the call, and released means that the connection is released.
	longest  time.Duration
	limit    sqltx.Limit
	late     error
	released bool
	flight   *sqltx.Flight
}

// The default methods of a plan.

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

// retry repeats a transaction that the server undoes: see [sqltx.Retry].
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

// The store's savepoint marks the transaction. If the transaction was ended, by anyone and even if another one was
// begun since, the savepoint is gone. A statement that names it is then an SQL error, which stops a commit.
var (
	setSavepoint     = stmt(`SAVEPOINT onceward_begun`)
	releaseSavepoint = stmt(`RELEASE SAVEPOINT onceward_begun`)
	toSavepoint      = stmt(`ROLLBACK TO SAVEPOINT onceward_begun`)
	commit           = stmt(`COMMIT`)
	rollback         = stmt(`ROLLBACK`)
)

// thisNode is the SQL expression that distinguishes one server of a cluster from the others.
const thisNode = `CONCAT(@@hostname, ':', @@port)`

// errorNoSavepoint is the error for a savepoint that is gone.
const errorNoSavepoint = 1305

// The settings of a transaction's session. A statement that fails with a deadlock ends the transaction. With autocommit
// off, the statements after it belong to a new transaction and are undone, instead of being committed one by one. If a
// process stops in mid-transaction, the server closes its connection when it has been idle for too long. The lock wait
// is the user's setting for the statements of the work, and short for the statements of the store.
const (
	// keepBorrowed saves the settings of a connection of the application,
	// setBorrowed changes them, and returnBorrowed restores them.
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
	// plainIdle is how long a transaction without a lease may be idle.
	plainIdle = 10 * time.Minute
)

var (
	patient   = stmt(`SET SESSION innodb_lock_wait_timeout = @onceward_lock_wait`)
	impatient = stmt(`SET SESSION innodb_lock_wait_timeout = ?`, lockWait)
)

// beginning returns the first statements of a transaction.
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

// ending returns the statements that end a transaction, with the statements that restore the connection's settings.
func (t *transaction) ending(statements ...statement) []statement {
	statements = append([]statement{impatient}, statements...)
	if _, set := t.idle(); !t.store.opened {
		statements = append(statements, stmt(returnBorrowed))
	} else if set {
		statements = append(statements, stmt(setIdle, int(handlersIdle.Seconds())))
	}
	return statements
}

// idle returns how many seconds the transaction may be idle, and whether the session has to be set to that: the store's
// own connections already have a limit that suits most leases.
func (t *transaction) idle() (seconds int, set bool) {
	idle := plainIdle
	if t.lease > 0 {
		idle = max(t.lease, time.Second) + idleGrace
	}
	return int(math.Ceil(idle.Seconds())), idle > handlersIdle || 2*idle < handlersIdle
}

// begin runs the first round trip: the statements of the plan's claim, and the savepoint. It is not interrupted if the
// caller leaves, because the server would keep its locks until it noticed.
func (t *transaction) begin(ctx context.Context) error {
	statements := append(t.beginning(), t.plan.claim()...)
	return t.link.query(sqltx.Undisturbed(ctx, settleTimeout), t.plan.read, append(statements, patient, setSavepoint)...)
}

// notBegun returns the error of a transaction whose connection was lost at its beginning: nothing was done. It is tried
// again unless the caller has left, because the connection may have been dead before.
func (t *transaction) notBegun(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return &sqltx.UndoneError{Cause: err, Early: true}
	}
	return unavailable(err)
}

// decided asks the plan whether the work is run, and rolls back if
// not. If the node accepts no writes, the pool looks for another one.
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

// unavailableUnlessRefused wraps an error of the database, and returns an error of the state machine unchanged.
func unavailableUnlessRefused(err error) error {
	if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalidEvent) {
		return err
	}
	return unavailable(err)
}

// execute passes the transaction to the work and closes the gate
// afterwards, even if the work panics or ends its goroutine.
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
		ctx = context.WithoutCancel(ctx) // only its limit ends the work
	}
	t.gate.t = t
	t.limit.Start(t.longest, t)
	action, err = t.plan.work(t.gate.ctx.With(ctx, gateKey{}, &t.gate))
	returned = true
	return action, err
}

// The errors of a transaction that the work has left in a bad state.
var (
	errEnded  = errors.New("the work ended the transaction that is not its to end")
	errLost   = errors.New("the connection was lost before the work was done")
	errCalled = errors.New("the connection was lost behind a statement that may have ended the transaction")
	errUndone = errors.New("the server undid a transaction behind a statement that may have ended it")
)

// finish ends the transaction by the action that the work returned. The cause is the work's error.
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
	case t.gate.gone: // later statements were refused
		return t.gone(nil, cause)
	case t.gate.Conflict != nil:
		action = store.TxRollback // work that met a conflict is run again
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

// gone ends a transaction that the server has undone, with its savepoint, because of another one. The conflict is the
// one that the work has met, or else the argument.
func (t *transaction) gone(conflict, cause error) error {
	if t.gate.Ending.Load() {
		_ = t.rollback()
		return t.plan.spoiled(errUndone, cause)
	}
	t.gate.Meet(conflict)
	return t.undo(cause, rollback)
}

// undo rolls back, and returns the cause. If a statement failed because of another transaction, the work is run again.
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

// rollback rolls back the transaction.
func (t *transaction) rollback() error {
	if t.link.lost() {
		return nil
	}
	_, err := t.link.exec(time.Now().Add(settleTimeout), t.ending(rollback)...)
	return err
}

// release returns the connection, unless it was returned when the transaction was revoked.
func (t *transaction) release() {
	if !t.released {
		t.link.release()
	}
}

// errLateEnded is the error of late work that may have ended the transaction itself.
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
		t.gate.Close(t.store.logger) // this waits for the running call
	}
	t.link.cut() // it is not used again: late work may still refer to it
	t.link.release()
	t.released = true
}

// undoLate ends the transaction of late work, and returns the error of
// the call. It reports whether the work no longer uses the connection.
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

// kill makes the server end the connection of the transaction. Otherwise the server would run a
// statement to its end, and would notice a cut connection only later. kill first checks that it
// has reached the same server and that the server was not restarted since. Otherwise the number
// may belong to another connection, because a restarted server counts its connections from one.
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
		return err // the connection may be gone already
	})
}

// selectUptime reads how many seconds ago the server was started. It is the difference of two times in whole seconds.
const selectUptime = `SHOW GLOBAL STATUS LIKE 'Uptime'`

// awaitUndone waits until the server has undone the transaction that kill ended. The server replies to KILL before it
// has done so, and until then the key is locked.
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

// lookTimeout bounds a query that is sent to the server on another connection.
const lookTimeout = 5 * time.Second
