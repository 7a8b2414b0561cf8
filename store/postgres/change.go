package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// The statements that change a record as [store.Step] decides, under the lock of its row.
const (
	begin        = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	selectMoment = `SELECT @now(), CASE WHEN $1 THEN nextval('@attempt') ELSE 0 END,
		set_config('idle_in_transaction_session_timeout', '10s', true)`
	lockRecord   = `SELECT ` + columns + ` FROM @record WHERE id = $1 FOR NO KEY UPDATE`
	deleteRecord = `DELETE FROM @record WHERE id = $1`
	// getRecord always returns a row, so that a missing reply is not taken for a missing record.
	getRecord = `SELECT $1::uuid, @now(), pg_is_in_recovery(), ` + columns + `
		FROM (SELECT) AS one LEFT JOIN @record ON id = $1`
)

// The numbers of the statements of a look whose replies are read, and the columns of getRecord.
const (
	lookedRecord, lookedMoment = 1, 2

	gotID, gotNow, gotStandby, gotRecord = 0, 1, 2, 3
)

var (
	insertRecord = insertColumns(nil)
	updateRecord = updateColumns(nil) + ` WHERE id = $1`
)

// setColumns returns the columns of a record and the values that they are set to: the parameters from $2 on, or
// expressions in which a question mark stands for the parameter.
func setColumns(expressions map[string]string) (names, set []string) {
	names = strings.Split(columns, ", ")
	for i, name := range names {
		parameter := "$" + strconv.Itoa(i+2)
		if expression, ok := expressions[name]; ok {
			parameter = strings.ReplaceAll(expression, "?", parameter)
		}
		set = append(set, parameter)
	}
	return names, set
}

// insertColumns returns the statement that inserts a record, with the id as $1.
func insertColumns(expressions map[string]string) string {
	names, set := setColumns(expressions)
	return `INSERT INTO @record (id, ` + strings.Join(names, ", ") + `) VALUES ($1, ` + strings.Join(set, ", ") + `)`
}

// updateColumns returns the beginning of the statement that updates all columns of a record.
func updateColumns(expressions map[string]string) string {
	names, set := setColumns(expressions)
	for i, name := range names {
		set[i] = name + ` = ` + set[i]
	}
	return `UPDATE @record SET ` + strings.Join(set, ", ")
}

// changed is a record before and after an event.
type changed struct {
	before, after store.Record
	outcome       store.Transition
	now           time.Time
	// found is the row before the event, if exists is true. wrote is the row after it.
	found, wrote row
	exists       bool
}

// change applies an event to a record in a transaction of its own. It is used for rare events; frequent
// events go through the batcher.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (c changed, err error) {
	if err := s.writable(); err != nil {
		return c, err
	}
	// After these errors nothing was written, or a reservation was written that its nonce finds again.
	again := func(err error) bool {
		return undone(err) || s.lostRace(err) || errors.Is(err, errNotBegun) ||
			event.Kind == store.EventReserve && errors.Is(err, errUnanswered)
	}
	err = repeatOn(ctx, again, func() error {
		c, err = s.changeOnce(ctx, id, event)
		if errors.Is(err, errUnanswered) && event.Kind != store.EventReserve {
			// A change whose outcome cannot be found out is not repeated: an event without a fence, such as a bust,
			// would apply to a record that was made since.
			err = s.landed(ctx, id, &c, err)
		}
		return err
	})
	if err == nil && c.outcome.Effect == store.EffectNone && event.Kind != store.EventReserve {
		err = unavailable(replicated(ctx, s.asking)) // an earlier commit may have been cut off from the standbys
	}
	return c, err
}

// errNotBegun is the error of a change whose connection turned out to be dead before anything was written.
var errNotBegun = errors.New("not begun")

// errUnanswered is the error of a change whose COMMIT was not answered.
var errUnanswered = errors.New("it is not known yet what became of the commit")

func (s *Store) changeOnce(ctx context.Context, id store.ID, event store.Event) (c changed, err error) {
	conn, err := s.own.Acquire(ctx)
	if err != nil {
		return c, unavailable(err)
	}
	defer conn.Release() // the pool closes a connection that is still in its transaction
	hash := s.hash(id)
	err = s.look(ctx, conn.Conn(), id, hash, &event, &c)
	if err != nil && conn.Conn().IsClosed() && ctx.Err() == nil {
		s.own.Reset() // the other connections are probably dead too
		return c, fmt.Errorf("%w: %w", errNotBegun, err)
	}
	noteStandby(conn.Conn(), err)
	if err != nil {
		return c, errors.Join(err, rollback(conn.Conn(), lookTimeout))
	}
	if c.after, c.outcome, err = store.Step(c.before, event, c.now); err != nil || c.outcome.Effect == store.EffectNone {
		return c, errors.Join(err, unavailable(rollback(conn.Conn(), lookTimeout)))
	}
	err = s.write(ctx, conn.Conn(), hash, &c)
	if err != nil && lost(err) {
		s.own.Reset() // the other connections are probably dead too
		err = fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return c, unavailable(err)
}

// look begins a transaction and reads a record under its lock, with the clock and, if the event takes one, a new
// token. It stops when ctx ends.
func (s *Store) look(
	ctx context.Context, conn *pgx.Conn, id store.ID, hash [16]byte, event *store.Event, c *changed,
) (err error) {
	trip := pipeline{conn: conn, unnamed: true, opens: true, until: ctx}
	trip.add(s.sql.begins[readCommittedLevel])
	trip.add(&s.sql.lockRecord, hash[:])
	trip.add(&s.sql.moment, trip.mark(mark(event.Kind.TakesToken())))
	c.found = row{id: hash}
	_, err = trip.run(sqltx.Undisturbed(ctx, settleTimeout), func(statement int, raw [][]byte) error {
		v := values{raw: raw}
		switch statement {
		case lookedRecord:
			c.exists = true
			v.row(&c.found, 0)
		case lookedMoment:
			c.now, event.Token = fromMicros(v.int64(0)), v.int64(1)
		}
		return v.err
	})
	if err != nil {
		return unavailable(err)
	}
	if c.exists {
		c.before, err = c.found.record(id)
	}
	return err
}

// notFoundAsIs returns an error about a record unchanged, and wraps an error of the database.
func notFoundAsIs(err error) error {
	if errors.Is(err, store.ErrUnreadable) {
		return err
	}
	return unavailable(err)
}

// write applies the effect and commits, in one round trip. It does not ask the server to stop when the caller's time is
// up: a commit that waits for a standby would then be done without the standby.
func (s *Store) write(ctx context.Context, conn *pgx.Conn, hash [16]byte, c *changed) error {
	trip := pipeline{conn: conn, unnamed: true}
	switch {
	case c.outcome.Effect == store.EffectRemove:
		trip.add(&s.sql.deleteRecord, hash[:])
	default:
		r := &c.wrote
		r.encode(&c.after, hash)
		if c.found.attempt == r.attempt {
			r.step = c.found.step // another call of the owner may look for this step
		}
		statement := &s.sql.updateRecord
		if !c.exists {
			statement = &s.sql.insertRecord
		}
		trip.add(statement, trip.row(r)...)
	}
	trip.add(&s.sql.commit)
	deadline := time.Now().Add(settleTimeout)
	if limit, ok := ctx.Deadline(); ok && limit.Before(deadline) {
		deadline = limit
	}
	err := trip.runCommit(deadline, func(int, [][]byte) error { return nil })
	if err == nil && trip.warned {
		err = replicated(ctx, s.asking)
	}
	return err
}

// rollback rolls a transaction back, even if the caller has left.
func rollback(conn *pgx.Conn, limit time.Duration) error {
	if conn.IsClosed() || conn.PgConn().TxStatus() == statusIdle {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := conn.Exec(ctx, `ROLLBACK`)
	return err
}

// get reads a record and the clock. It returns the clock even if there is no record.
func (s *Store) get(ctx context.Context, id store.ID) (rec store.Record, now time.Time, err error) {
	if err := errors.Join(ctx.Err(), s.ready()); err != nil {
		return rec, now, unavailable(err)
	}
	r := row{id: s.hash(id)}
	at, err := s.read(ctx, &r)
	if err == nil {
		rec, err = r.record(id)
	}
	return rec, fromMicros(at), err
}

// read reads the row of an id, and the clock. If the first connection turns out to be dead, read uses a second one.
func (s *Store) read(ctx context.Context, r *row) (at int64, err error) {
	exists := false
	_, err = s.own.repeated(ctx, func() (err error) {
		at, exists, err = s.getOnce(ctx, r)
		return err
	})
	if err == nil && !exists {
		err = store.ErrNotFound
	}
	return at, err
}

// getOnce reads a row on one connection. On a standby it returns [ErrStandby], because a standby may
// lack a record that exists.
func (s *Store) getOnce(ctx context.Context, r *row) (at int64, exists bool, err error) {
	conn, err := s.own.Acquire(ctx)
	if err != nil {
		return 0, false, err
	}
	defer conn.Release()
	trip := pipeline{conn: conn.Conn(), unnamed: true, until: ctx}
	trip.add(&s.sql.get, r.id[:])
	_, err = trip.run(sqltx.Undisturbed(ctx, settleTimeout), func(_ int, raw [][]byte) error {
		v := values{raw: raw}
		switch at = v.int64(gotNow); {
		case [16]byte(v.fixed(gotID, 16)) != r.id:
			return fmt.Errorf("%w: another record", errForeignReply)
		case v.bool(gotStandby):
			return ErrStandby
		}
		if exists = v.column(gotRecord) != nil; exists {
			v.row(r, gotRecord)
		}
		return v.err
	})
	noteStandby(conn.Conn(), err)
	return at, exists, err
}

// errNotLanded is the error of a change that was certainly not made, after its reply was lost.
var errNotLanded = fmt.Errorf("%w: the commit did not land", errNotBegun)

// landed finds out whether a change was made whose COMMIT was not answered. It reads the record under its lock, so that
// the transaction is over by then. It returns nil if the change was made, errNotLanded if it was not, and the cause if
// that cannot be found out any more.
func (s *Store) landed(ctx context.Context, id store.ID, c *changed, cause error) error {
	var now changed
	err := learn(ctx, func(ctx context.Context) error {
		now = changed{}
		err := s.lookAgain(ctx, id, &now)
		if err == nil && c.madeOf(&now) {
			err = replicated(ctx, s.asking)
		}
		return err
	})
	switch {
	case err != nil: // not wrapped: it is not about the outcome of the change
		return fmt.Errorf("%w; then the record could not be read: %v", cause, err)
	case c.madeOf(&now):
		return nil
	case c.unmadeOf(&now):
		return unavailable(errNotLanded)
	default:
		return cause
	}
}

// learn calls ask, which finds out the outcome of a commit that was not answered, until ask succeeds or ctx
// ends. It continues through a restart of the server. It does not retry if the record cannot be read because a
// newer version has written it.
func learn(ctx context.Context, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := ask(ctx)
		if err == nil || errors.Is(err, store.ErrUnreadable) ||
			!backoff.Sleep(ctx, backoff.Exponential(askPause, maxAskPause, failures)) {
			return err
		}
	}
}

// The limits of learn: how long it continues, and the first and the longest pause between two calls of ask.
const (
	askTimeout  = 20 * time.Second
	askPause    = 50 * time.Millisecond
	maxAskPause = time.Second
)

// lookAgain reads a record under its lock.
func (s *Store) lookAgain(ctx context.Context, id store.ID, now *changed) error {
	conn, err := s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := s.look(ctx, conn.Conn(), id, s.hash(id), &store.Event{}, now); err != nil {
		return err
	}
	return rollback(conn.Conn(), lookTimeout)
}

// madeOf reports whether the record is as the change left it. No other change makes an equal row: a grant has the nonce
// of its caller, and other events set due from the server's clock, which is read under the lock of the row. A
// checkpoint and a rewrite set neither: an equal row then has the requested effect, whichever call made it.
func (c *changed) madeOf(now *changed) bool {
	if c.outcome.Effect == store.EffectRemove {
		return !now.exists
	}
	return now.exists && now.found.equal(&c.wrote)
}

// unmadeOf reports whether the record is as it was before the change.
func (c *changed) unmadeOf(now *changed) bool {
	return now.exists == c.exists && now.found.equal(&c.found)
}

// equal reports whether two rows are the same.
func (r *row) equal(other *row) bool {
	return reflect.DeepEqual(r, other)
}
