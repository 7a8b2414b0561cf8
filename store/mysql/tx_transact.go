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

// The statements of a transaction with a record. Its record is written once, at the end, over nothing or over what was
// seen at the beginning. Until then a row of another table stands for it, which is there for as long as the transaction
// lasts, and keeps the next one of the same key from beginning: to find it locked costs no wait. That table is small,
// and its rows have one index: what is written twice is not the record. The primary key of the records stays the last
// line of defence.
const (
	lockClaim   = `SELECT l.name FROM @lock l WHERE l.name = ? FOR UPDATE NOWAIT`
	insertClaim = `INSERT INTO @lock (name, number) VALUES (?, @now) ON DUPLICATE KEY UPDATE number = @now`
	deleteClaim = `DELETE FROM @lock WHERE name = ?`
	// lookUp always returns a row: that of the lock, whose number is the time, with the record if there is one. It is a
	// statement behind the lock: so it sees what the last holder of that has committed.
	lookUp = `SELECT l.number, @@global.read_only, ` + allColumns + `
		FROM @lock l LEFT JOIN @record r ON r.hash = ? WHERE l.name = ?`
	// lookUpApart is lookUp without the row of the lock.
	lookUpApart = `SELECT @now, @@global.read_only, ` + allColumns + `
		FROM (SELECT 1 AS one) AS always LEFT JOIN @record r ON r.hash = ?`
	// askSession asks of a connection that the store has not made what it knows of its own.
	askSession = `SELECT CONNECTION_ID(), @node`
	// writeNew makes a record, and checkToken, behind it, stops the commit if its token may have been used for one that
	// was removed, also after it was drawn: what removes a record raises the number first, and from the insert on nothing
	// else can take the place, so that no removal is overlooked. A number is out of range then, which is an error in every
	// sql_mode. So it is if there is no number to compare with: MAX makes a row of nothing. To check it in the insert
	// itself costs the server more than a second statement does.
	writeNew = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, record, content)
		VALUES (?, ?, ?, ?, LAST_INSERT_ID(@now + ?), @now, @now, ?, ?)`
	checkToken = `SELECT 1 + 9223372036854775807 * COALESCE(MAX(value) >= ?, 1) FROM @meta
		WHERE name = 'max_removed_attempt'`
	// checkTokenNow is checkToken where a statement sees what was there when the work first read: it reads behind a lock.
	checkTokenNow = checkToken + ` LOCK IN SHARE MODE`
	// writeOver writes over the record that was found, at the attempt and the revision that it had then.
	writeOver = `UPDATE @record SET attempt = ?, revision = ?, state = ?, due = LAST_INSERT_ID(@now + ?),
			settled_at = @now, created_at = ?, record = ?, content = ?
		WHERE hash = ? AND attempt = ? AND revision = ?`
)

// The statements that set the level of the next transaction.
var (
	setReadCommitted = stmt(`SET TRANSACTION ISOLATION LEVEL READ COMMITTED`)
	setLevels        = map[sql.IsolationLevel][]statement{
		sql.LevelReadCommitted:  {setReadCommitted},
		sql.LevelRepeatableRead: {stmt(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)},
		sql.LevelSerializable:   {stmt(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)},
	}
)

// readCommitted reports whether the transaction is at that level, which locks no gaps between rows.
func (t *transaction) readCommitted() bool {
	return t.level == sql.LevelReadCommitted || t.level == sql.LevelDefault && t.store.level == "READ-COMMITTED"
}

// claims are the statements that begin a transaction with a record. At a level that locks the gaps between rows, to look
// for what is not there would keep neighbours with other keys from writing, and they would undo each other: there a
// transaction of its own looks before. What is committed between the two is found by the insert of the record, which
// then fails, and all is undone and decided again.
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

// claimOf is the name of the row that stands for a record while a transaction has it.
func claimOf(id store.ID) []byte { return lockOf("record", id.AppendBinary(nil)) }

// view is what a transaction with a record has seen.
type view struct {
	now      time.Time
	readOnly bool
	found    row
	exists   bool
	before   store.Record
}

const (
	// viewColumns is how many columns lookUp has in front of those of the record, and allOfLookUp all of them.
	viewColumns = 2
	allOfLookUp = viewColumns + 8
	// sessionColumns is how many askSession has.
	sessionColumns = 2
)

// readView takes a row of lookUp or askSession; those of other statements tell nothing.
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

// LongestWork implements [store.Transactor]: a handler gets the lease.
func (s *Store) LongestWork(lease time.Duration) time.Duration { return lease }

// InFlight implements [store.Transactor].
func (s *Store) InFlight(id store.ID) bool { return s.flights.Has(id) }

// Transact implements [store.Transactor]. The work is run again if the server undid the transaction because of its
// neighbours, and decided again if another one was faster. On a cluster that certifies at commit, a duplicate on
// another node may run the work too: of the two one is committed, and the other one, undone, gets its answer.
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
	granted store.Record // with the right to execute
	// elsewhere says that a transaction of another process has the record.
	elsewhere bool

	executed   bool
	verdict    store.Verdict
	settlement store.Settlement
	settled    store.Record
	answer     int   // which of the statements that are written is the answer
	revision   int64 // of the answer
}

// result is the verdict.
func (x *handlerPlan) result() store.Verdict {
	switch {
	case !x.executed || x.verdict.Decision != store.DecisionExecute: // not run, or another one was faster
	case x.settlement.Action == store.TxRollback:
		x.verdict.Record = x.before
	default:
		x.verdict.Record = x.settled
	}
	return x.verdict
}

func (x *handlerPlan) claim() []statement { return x.claims() }

func (x *handlerPlan) read(raw []sqldriver.Value) error { return x.readView(raw, &x.view) }

// decide says what the request may do. Where another transaction has the record it may not execute; what is there it
// may have.
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

// origin is that of the work which has run already, if it has.
func (x *handlerPlan) origin(found store.Origin) store.Origin {
	if x.executed {
		return x.verdict.Origin
	}
	return found
}

// declined looks at what is committed where another transaction has the record, and writes down a lease that was found
// to have run out.
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

// work runs the handler. That the caller leaves does not end it.
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

// wrote fills in the server's clock.
func (x *handlerPlan) wrote(ids []int64) {
	x.settled.ExpiresAt = fromMicros(ids[x.answer])
	x.settled.SettledAt = x.settled.ExpiresAt.Add(-x.settled.Retention)
	if !x.exists {
		x.settled.CreatedAt = x.settled.SettledAt // a transaction makes its record at its end
	}
}

// learned answers by what is stored when the transaction is over. The revision of this transaction's write nobody else
// can have drawn. The answer of another transaction is replayed. That the record is missing proves nothing by itself,
// because it may have been removed: see [handlerPlan.undone].
func (x *handlerPlan) learned(ctx context.Context, cause error) error {
	var stored changed
	err := x.store.fenceClaim(ctx, x.id)
	if err == nil {
		err = x.store.look(ctx, x.id, &stored)
	}
	if err == nil {
		err = x.store.learnFloor(ctx) // after the look: what removes a record raises the floor first
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
		return fmt.Errorf("%w: add a message: %w", store.ErrWorkRefused, cause) // it was not the record that was there
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

// undone reports whether what is stored proves that this transaction was not committed: its token would have raised the
// floor when its record was removed, and the tokens of a record grow.
func (x *handlerPlan) undone(rec *store.Record) bool {
	return x.store.floor.Load() < x.settled.Attempt && rec.Attempt < x.settled.Attempt
}

func (x *handlerPlan) spoiled(reason, _ error) error {
	return sqltx.Spoil(&x.store.Methods, x.event.Reservation, reason)
}

// read takes a row of allColumns. The driver's bytes are its own.
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
