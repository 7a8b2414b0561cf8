package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

var _ store.Transactor = (*Store)(nil)

// The statements of a transaction with a record. The record is written once, at the end: as a new row, or over the row
// that was read at the beginning. Until then a row of another table stands for it. That row exists as long as the
// transaction, and keeps the next transaction of the same key from beginning; finding it locked takes no wait. The
// other table is small and its rows have one index, so it is cheaper to write twice than the record. The primary key of
// the records stays the last line of defence.
const (
	lockClaim   = `SELECT l.name FROM @lock l WHERE l.name = ? FOR UPDATE NOWAIT`
	insertClaim = `INSERT INTO @lock (name, number) VALUES (?, @now) ON DUPLICATE KEY UPDATE number = @now`
	deleteClaim = `DELETE FROM @lock WHERE name = ?`
	// lookUp always returns a row: the row of the lock, whose number is the time, with the record if there is one. It
	// runs after the statement that takes the lock, so it sees what the last holder of the lock has committed.
	lookUp = `SELECT l.number, @@global.read_only, ` + allColumns + `
		FROM @lock l LEFT JOIN @record r ON r.hash = ? WHERE l.name = ?`
	// lookUpApart is lookUp without the row of the lock.
	lookUpApart = `SELECT @now, @@global.read_only, ` + allColumns + `
		FROM (SELECT 1 AS one) AS always LEFT JOIN @record r ON r.hash = ?`
	// askSession reads the number and the node of a connection that the store did not make.
	askSession = `SELECT CONNECTION_ID(), @node`
	// writeNew creates a record. checkToken runs after it, and stops the commit if the token may have
	// been used by a removed record, even one that was removed after the token was drawn. No removal
	// is overlooked: a removal raises the floor first, and after the insert no other record can take
	// the place. checkToken then computes a number that is out of range, which is an error in every
	// sql_mode. It does the same if there is no floor to compare with, because MAX returns a row even
	// without rows. A check in the insert itself costs the server more than a second statement.
	writeNew = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, record, content)
		VALUES (?, ?, ?, ?, LAST_INSERT_ID(@now + ?), @now, @now, ?, ?)`
	checkToken = `SELECT 1 + 9223372036854775807 * COALESCE(MAX(value) >= ?, 1) FROM @meta
		WHERE name = 'max_removed_attempt'`
	// checkTokenNow is checkToken for isolation levels at which a statement sees only what was there when the work
	// first read. It reads with a lock, and so sees the latest commit.
	checkTokenNow = checkToken + ` LOCK IN SHARE MODE`
	// writeOver overwrites the record that was found, if its attempt and revision are unchanged.
	writeOver = `UPDATE @record SET attempt = ?, revision = ?, state = ?, due = LAST_INSERT_ID(@now + ?),
			settled_at = @now, created_at = ?, record = ?, content = ?
		WHERE hash = ? AND attempt = ? AND revision = ?`
)

// The statements that set the isolation level of the next transaction.
var (
	setReadCommitted = stmt(`SET TRANSACTION ISOLATION LEVEL READ COMMITTED`)
	setLevels        = map[sql.IsolationLevel][]statement{
		sql.LevelReadCommitted:  {setReadCommitted},
		sql.LevelRepeatableRead: {stmt(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)},
		sql.LevelSerializable:   {stmt(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)},
	}
)

// readCommitted reports whether the transaction is at READ COMMITTED, which locks no gaps between rows.
func (t *transaction) readCommitted() bool {
	return t.level == sql.LevelReadCommitted || t.level == sql.LevelDefault && t.store.level == "READ-COMMITTED"
}

// claims returns the statements that begin a transaction with a record. At a level that locks the gaps between rows, a
// search for a missing row would keep transactions with other keys from writing, and they would undo each other. There
// a separate transaction looks first. If another transaction commits between the two, the write of the record fails,
// and everything is undone and decided again.
func (t *transaction) claims() []statement {
	s, name, hash := t.store, claimOf(t.id), t.id.HashBytes()
	lock, insert := stmt(s.render(lockClaim), name), stmt(s.render(insertClaim), name)
	var claims []statement
	if t.readCommitted() {
		claims = append(slices.Clone(setLevels[t.level]), lock, insert, stmt(s.render(lookUp), hash[:], name))
	} else {
		claims = []statement{setReadCommitted, lock, stmt(s.render(lookUpApart), hash[:]), rollback}
		claims = append(append(claims, setLevels[t.level]...), insert)
	}
	if t.session == 0 {
		claims = append(claims, stmt(s.render(askSession)))
	}
	return claims
}

// claimOf returns the name of the row that stands for a record while a transaction has claimed it.
func claimOf(id store.ID) []byte { return lockOf("record", id.AppendBinary(nil)) }

// view is what a transaction with a record has read.
type view struct {
	now      time.Time
	readOnly bool
	found    row
	exists   bool
	before   store.Record
}

const (
	// viewColumns is how many columns lookUp has before the columns
	// of the record, and allOfLookUp is how many it has in all.
	viewColumns = 2
	allOfLookUp = viewColumns + 8
	// sessionColumns is how many columns askSession has.
	sessionColumns = 2
)

// readView reads a row of lookUp or askSession. It ignores the rows of other statements.
func (t *transaction) readView(raw []sqldriver.Value, v *view) (err error) {
	switch len(raw) {
	case sessionColumns:
		t.session, err = int64Of(raw[0])
		t.node = text(raw[1])
		return err
	case allOfLookUp:
	default:
		return nil
	}
	now, err := int64Of(raw[0])
	*v = view{now: fromMicros(now), readOnly: isOn(setting(raw[1])), found: row{hash: t.id.HashBytes()}}
	if err != nil || raw[viewColumns] == nil {
		return err
	}
	if v.exists = true; v.found.read(raw[viewColumns:]) != nil {
		return errDamaged
	}
	v.before, err = v.found.recordOf(t.id)
	return err
}

// LongestWork implements [store.Transactor]: a handler may use its whole lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease }

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool { return s.flights.Has(id) }

// Transact implements [store.Transactor]. The work is run again if the server undid the
// transaction because of another one, and the request is decided again if another transaction was
// faster. In a cluster that certifies at commit, a duplicate on another node may run the work
// too: one of the two is committed, and the other is undone and gets the answer of the first.
func (s *Store) Transact(
	ctx context.Context, r *store.Reservation, work func(context.Context, store.Verdict) store.Settlement,
) (v store.Verdict, err error) {
	event := store.Event{Kind: store.EventReserve, Reservation: r, Token: 1}
	if _, _, err := store.Step(store.Record{}, event, time.Now()); err != nil {
		return v, err
	}
	if err := s.writable(); err != nil {
		return v, err
	}
	if err := left(ctx); err != nil {
		return v, err
	}
	f := s.flights.Enter(r.ID)
	if f == nil {
		return s.inFlight(ctx, event, nil)
	}
	defer s.waits.Wake(r.ID)
	defer s.flights.Leave(r.ID, f)
	err = retry(ctx, true, func(ctx context.Context) error {
		x := &handlerPlan{
			transaction: transaction{
				store: s, keyed: true, id: r.ID, lease: r.Lease, answers: true, longest: s.LongestWork(r.Lease), flight: f,
				level: r.Isolation,
			},
			event: event, run: work,
		}
		x.plan = x
		err := x.try(ctx)
		v = x.result()
		return err
	})
	return v, err
}

// handlerPlan is the plan of [Store.Transact]: the work of a handler and its answer.
type handlerPlan struct {
	transaction
	event store.Event
	run   func(context.Context, store.Verdict) store.Settlement
	view
	granted store.Record // the record with the right to execute
	// elsewhere means that a transaction of another process has claimed the record.
	elsewhere bool

	executed   bool
	verdict    store.Verdict
	settlement store.Settlement
	settled    store.Record
	answer     int   // the index of the statement that writes the answer
	revision   int64 // of the answer
}

// result returns the verdict of the transaction.
func (x *handlerPlan) result() store.Verdict {
	switch {
	case !x.executed || x.verdict.Decision != store.DecisionExecute: // not run, or another transaction was faster
	case x.settlement.Action == store.TxRollback:
		x.verdict.Record = x.before
	default:
		x.verdict.Record = x.settled
	}
	return x.verdict
}

func (x *handlerPlan) claim() []statement { return x.claims() }

func (x *handlerPlan) read(raw []sqldriver.Value) error { return x.readView(raw, &x.view) }

// decide decides what the request may do. If another transaction has claimed the record, the request may not execute,
// but it may get the answer that is committed.
func (x *handlerPlan) decide(cause error) (run bool, err error) {
	switch {
	case locked(cause):
		x.elsewhere = true
		return false, nil
	case cause != nil:
		return false, cause
	case x.readOnly:
		return false, ErrReadOnlyNode
	}
	event := x.event
	event.Token = x.store.token(x.now, &x.before)
	after, outcome, err := store.Step(x.before, event, x.now)
	if err != nil {
		return false, err
	}
	x.granted = after
	x.verdict = store.Verdict{Decision: outcome.Decision, Origin: x.origin(outcome.Origin), Record: after, Now: x.now}
	return outcome.Decision == store.DecisionExecute && outcome.Origin != store.OriginRepeated, nil
}

// origin returns the origin of the work if it has already run, and the argument otherwise.
func (x *handlerPlan) origin(found store.Origin) store.Origin {
	if x.executed {
		return x.verdict.Origin
	}
	return found
}

// declined answers from what is committed if another transaction has
// claimed the record. It also records the loss of a lease that had ended.
func (x *handlerPlan) declined() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	switch {
	case x.elsewhere:
		x.verdict, err = x.store.inFlight(ctx, x.event, nil)
	case x.verdict.Decision == store.DecisionUnknown && x.before.State == store.StateInProgress:
		x.verdict, err = sqltx.Lose(&x.store.Methods, *x.event.Reservation)
	}
	return err
}

// work runs the handler. The handler continues if the caller leaves.
func (x *handlerPlan) work(ctx context.Context) (store.TxAction, error) {
	x.executed = true
	x.settlement = x.run(ctx, x.verdict)
	return x.settlement.Action, nil
}

func (x *handlerPlan) prepare() (err error) {
	complete := store.Event{Kind: store.EventComplete, Attempt: x.granted.Attempt, Completion: &x.settlement.Completion}
	if x.settled, _, err = store.Step(x.granted, complete, x.now); err != nil {
		return unavailable(fmt.Errorf("settle: %w", err))
	}
	return nil
}

// write stores the answer.
func (x *handlerPlan) write() []statement {
	rec := &x.settled
	w := encode(rec)
	x.revision = w.revision
	retention := rec.Retention.Microseconds()
	statements := append(x.store.notingProvider(&x.before, rec), stmt(x.store.render(deleteClaim), claimOf(x.id)))
	x.answer = len(statements)
	if !x.exists {
		check := checkToken
		if !x.readCommitted() {
			check = checkTokenNow
		}
		return append(statements, stmt(x.store.render(writeNew), w.hash[:], w.attempt, w.revision, w.state,
			retention, w.record, w.content), stmt(x.store.render(check), w.attempt))
	}
	return append(statements, stmt(x.store.render(writeOver), w.attempt, w.revision, w.state, retention,
		w.createdAt, w.record, w.content, w.hash[:], x.found.attempt, x.found.revision), exactlyOne)
}

// wrote sets the times of the record by the server's clock.
func (x *handlerPlan) wrote(ids []int64) {
	x.settled.ExpiresAt = fromMicros(ids[x.answer])
	x.settled.SettledAt = x.settled.ExpiresAt.Add(-x.settled.Retention)
	if !x.exists {
		x.settled.CreatedAt = x.settled.SettledAt // a transaction creates its record at its end
	}
}

// learned returns the outcome that the store shows after the transaction has ended. Nobody else can have drawn the
// revision of this transaction's write. The answer of another transaction is replayed. A missing record alone proves
// nothing, because the record may have been removed: see [handlerPlan.undone].
func (x *handlerPlan) learned(ctx context.Context, cause error) error {
	var stored changed
	err := x.store.fenceClaim(ctx, x.id)
	if err == nil {
		err = x.store.look(ctx, x.id, &stored)
	}
	if err == nil {
		err = x.store.learnFloor(ctx) // after the look: a removal raises the floor first
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotLearned, err)
	}
	asBefore := stored.exists == x.exists && stored.found.revision == x.found.revision
	var rec store.Record
	if stored.exists {
		rec, err = stored.found.recordOf(x.id)
	}
	switch {
	case err != nil:
		return errors.Join(fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, cause), err)
	case stored.exists && stored.found.revision == x.revision:
		x.settled = rec
		return nil
	case duplicate(cause) && asBefore:
		return fmt.Errorf("%w: add a message: %w", store.ErrWorkRefused, cause) // the duplicate was not the record
	}
	after, outcome, err := store.Step(rec, x.event, stored.Now)
	switch {
	case err == nil && outcome.Decision == store.DecisionReplay:
		x.verdict = store.Verdict{Decision: store.DecisionReplay, Record: after, Now: stored.Now}
		return nil
	case answered(cause), asBefore && x.exists, x.undone(&rec):
		return notCommitted(cause)
	default:
		return fmt.Errorf("%w: commit: %w; then another record was there, or none", store.ErrOutcomeUnknown, cause)
	}
}

// undone reports whether the stored state proves that this transaction was not committed. If its record had been
// removed, the removal would have raised the floor to its token, and the tokens of a record only grow.
func (x *handlerPlan) undone(rec *store.Record) bool {
	return x.store.floor.Load() < x.settled.Attempt && rec.Attempt < x.settled.Attempt
}

func (x *handlerPlan) spoiled(reason, _ error) error {
	return sqltx.Spoil(&x.store.Methods, x.event.Reservation, reason)
}

// read reads a row of allColumns. It copies the bytes, which belong to the driver.
func (r *row) read(raw []sqldriver.Value) (err error) {
	for i, to := range []*int64{&r.attempt, &r.revision, nil, &r.due, &r.createdAt, &r.settledAt} {
		value, err := int64Of(raw[i])
		if err != nil {
			return err
		}
		if to == nil {
			r.state = int(value)
		} else {
			*to = value
		}
	}
	r.record, r.content = []byte(text(raw[6])), nullable([]byte(text(raw[7])))
	return nil
}
