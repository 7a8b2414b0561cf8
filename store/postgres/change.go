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

// The statements by which a record is changed as [store.Step] says, under the lock of its row.
const (
	begin        = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	selectMoment = `SELECT @now(), CASE WHEN $1 THEN nextval('@attempt') ELSE 0 END,
		set_config('idle_in_transaction_session_timeout', '10s', true)`
	lockRecord   = `SELECT ` + columns + ` FROM @record WHERE id = $1 FOR NO KEY UPDATE`
	deleteRecord = `DELETE FROM @record WHERE id = $1`
	// It returns a row in any case: what is not there is not read from a reply that is not there.
	getRecord = `SELECT $1::uuid, @now(), pg_is_in_recovery(), ` + columns + `
		FROM (SELECT) AS one LEFT JOIN @record ON id = $1`
)

// The statements of a look whose replies are read, by their numbers in the round trip, and the columns of getRecord.
const (
	lookedRecord, lookedMoment = 1, 2

	gotID, gotNow, gotStandby, gotRecord = 0, 1, 2, 3
)

var (
	insertRecord = insertColumns(nil)
	updateRecord = updateColumns(nil) + ` WHERE id = $1`
)

// setColumns returns the columns of a record, and what they are set to: the parameters from $2 on, or expressions with a
// question mark for the parameter.
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

// insertColumns is the statement that makes a record, with the id as $1.
func insertColumns(expressions map[string]string) string {
	names, set := setColumns(expressions)
	return `INSERT INTO @record (id, ` + strings.Join(names, ", ") + `) VALUES ($1, ` + strings.Join(set, ", ") + `)`
}

// updateColumns is the beginning of the statement that changes all of a record.
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
	// found is the row that was there, if exists says that there was one, and wrote the one that took its place.
	found, wrote row
	exists       bool
}

// change applies an event to a record in a transaction of its own. It is the way of everything that is rare; what is
// frequent goes through the batcher.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (c changed, err error) {
	if err := s.writable(); err != nil {
		return c, err
	}
	// Nothing was written then, or, of a reservation, nothing that its nonce would not find again.
	again := func(err error) bool {
		return undone(err) || s.lostRace(err) || errors.Is(err, errNotBegun) ||
			event.Kind == store.EventReserve && errors.Is(err, errUnanswered)
	}
	err = repeatOn(ctx, again, func() error {
		c, err = s.changeOnce(ctx, id, event)
		if errors.Is(err, errUnanswered) && event.Kind != store.EventReserve {
			// A change whose outcome cannot be learned is not made again: an event without a fence, such as a bust,
			// would meet what came since.
			err = s.landed(ctx, id, &c, err)
		}
		return err
	})
	if err == nil && c.outcome.Effect == store.EffectNone && event.Kind != store.EventReserve {
		err = unavailable(replicated(ctx, s.asking)) // its own call may have been cut off from the standbys
	}
	return c, err
}

// errNotBegun says that the connection turned out dead before anything was written.
var errNotBegun = errors.New("not begun")

// errUnanswered says that the reply to COMMIT did not come.
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
		s.own.Reset() // the others are likely dead too
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
		s.own.Reset() // the others are likely dead too
		err = fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return c, unavailable(err)
}

// look begins a transaction and reads a record under its lock, with the clock and, where the event takes one, a fresh
// token. All of it ends with a caller who leaves.
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

// notFoundAsIs keeps what is said of a record, and wraps what is said of the database.
func notFoundAsIs(err error) error {
	if errors.Is(err, store.ErrUnreadable) {
		return err
	}
	return unavailable(err)
}

// write carries an effect out and commits, in one round trip. It does not ask the server to stop when the caller's time is
// up: a commit that waits for a standby would be there without it.
func (s *Store) write(ctx context.Context, conn *pgx.Conn, hash [16]byte, c *changed) error {
	trip := pipeline{conn: conn, unnamed: true}
	switch {
	case c.outcome.Effect == store.EffectRemove:
		trip.add(&s.sql.deleteRecord, hash[:])
	default:
		r := &c.wrote
		r.encode(&c.after, hash)
		if c.found.attempt == r.attempt {
			r.step = c.found.step // another call of the owner may look for it
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

// rollback ends a transaction, also for a caller who has left.
func rollback(conn *pgx.Conn, limit time.Duration) error {
	if conn.IsClosed() || conn.PgConn().TxStatus() == statusIdle {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := conn.Exec(ctx, `ROLLBACK`)
	return err
}

// get reads a record as it stands, and the clock, also where there is none.
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

// read reads the row of an id, and the clock, on a second connection if the first one turns out dead.
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

// getOnce reads a row on one connection. What a standby does not have may be there all the same.
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

// errNotLanded says that a change whose reply was lost was not made, for certain.
var errNotLanded = fmt.Errorf("%w: the commit did not land", errNotBegun)

// landed finds out whether a change was made whose COMMIT was not answered: the record is looked at under its lock,
// so that the transaction is over. It returns nil if the change was made, errNotLanded if it was not, and the cause if
// that cannot be learned any more.
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
	case err != nil: // not wrapped: it does not say what became of the change
		return fmt.Errorf("%w; then the record could not be read: %v", cause, err)
	case c.madeOf(&now):
		return nil
	case c.unmadeOf(&now):
		return unavailable(errNotLanded)
	default:
		return cause
	}
}

// learn asks what became of a commit that was not answered, until there is an answer or the caller has left, through a
// restart of the server. A record that cannot be read, because a newer version has written it, stays so.
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

// The limits of learn: how long it asks, and the first and the longest pause between two questions.
const (
	askTimeout  = 20 * time.Second
	askPause    = 50 * time.Millisecond
	maxAskPause = time.Second
)

// lookAgain reads a record while nothing changes it.
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

// madeOf reports whether the record is what the change made of it. No other change makes an equal row: a grant has
// the nonce of its caller, and other events set due from the server's clock, which is read under the lock of the row.
// A checkpoint and a rewrite set none of these: an equal row then has the effect that was asked for, whichever call
// made it.
func (c *changed) madeOf(now *changed) bool {
	if c.outcome.Effect == store.EffectRemove {
		return !now.exists
	}
	return now.exists && now.found.equal(&c.wrote)
}

// unmadeOf reports whether the record is what it was before the change.
func (c *changed) unmadeOf(now *changed) bool {
	return now.exists == c.exists && now.found.equal(&c.found)
}

// equal reports whether two rows hold the same.
func (r *row) equal(other *row) bool {
	return reflect.DeepEqual(r, other)
}
