package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// The statements by which a record is changed as [store.Step] says. A record is read without a lock, and written on the
// condition that it still is at the attempt and the revision that was read: what another one has written in between
// makes it zero rows, and is decided again. So there is nothing that a node which stops in the middle could hold.
const (
	// selectRecord reads a record with the clock, and selectNow the clock alone, if there is none: a join that always has
	// a row would cost every replay.
	selectRecord = `SELECT @now, @@global.read_only, ` + allColumns + ` FROM @record r WHERE r.hash = ?`
	selectNow    = `SELECT @now, @@global.read_only`
	// insertRecord makes a record, unless its token may have been used for one that was removed.
	insertRecord = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, record, content)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ? FROM @meta WHERE name = 'max_removed_attempt' AND value < ?`
	updateRecord = `UPDATE @record SET attempt = ?, revision = ?, state = ?, due = ?, created_at = ?,
			settled_at = ?, record = ?, content = ?
		WHERE hash = ? AND attempt = ? AND revision = ?`
	// selectFloor reads the largest token of what was removed.
	selectFloor = `SELECT m.value FROM @meta m WHERE m.name = 'max_removed_attempt'`
	// raiseFloor comes before what removes records: should that not come, it does no harm.
	raiseFloor   = `UPDATE @meta SET value = ? WHERE name = 'max_removed_attempt' AND value < ?`
	deleteRecord = `DELETE FROM @record WHERE hash = ? AND attempt = ? AND revision = ?`
)

// changed is a record before and after an event.
type changed struct {
	store.Applied
	before store.Record
	// found is the row that was there, if exists says that there was one, and wrote the one that took its place.
	found, wrote row
	exists       bool
}

const (
	// maxRaces is how often a change is decided again because another one came first. Each time one of them gets on.
	maxRaces = 50
	// maxLocked is how often a change waits for a row that is locked.
	maxLocked = 2
)

// errRace says that another write came between the reading of a record and its writing. Nothing was written.
var errRace = errors.New("the record is changed all the time")

// change applies an event to a record.
func (s *Store) change(ctx context.Context, id store.ID, event store.Event) (c changed, err error) {
	if err := s.writable(); err != nil {
		return c, err
	}
	waits := 0
	for races := 1; ; races++ {
		if err := left(ctx); err != nil {
			return c, err
		}
		c, err = s.changeOnce(ctx, id, event)
		if errors.Is(err, errUnanswered) {
			err = s.unanswered(ctx, id, &c, event, err)
		}
		switch {
		case err == nil, races >= maxRaces:
			return c, unavailable(err)
		case locked(err):
			if waits++; waits >= maxLocked {
				return c, busy(err)
			}
		case errors.Is(err, errRace) && !c.exists:
			if err := s.learnFloor(ctx); err != nil {
				return c, unavailable(err)
			}
		case !errors.Is(err, errRace) && !undone(err) && !duplicate(err):
			return c, err
		}
		backoff.Sleep(ctx, backoff.Jittered(racePause, maxRacePause, races))
	}
}

// How long those who meet at one record keep out of each other's way.
const (
	racePause    = 200 * time.Microsecond
	maxRacePause = 50 * time.Millisecond
)

// busy says that another transaction is at the record.
func busy(err error) error { return fmt.Errorf("%w: mysql: %w", store.ErrBusy, err) }

// changeOnce reads, decides and writes.
func (s *Store) changeOnce(ctx context.Context, id store.ID, event store.Event) (c changed, err error) {
	if err := s.look(ctx, id, &c); err != nil {
		return c, unavailable(err)
	}
	if c.exists {
		if c.before, err = c.found.recordOf(id); err != nil {
			return c, err
		}
	}
	if event.Kind.TakesToken() {
		event.Token = s.token(c.Now, &c.before)
	}
	if c.Record, c.Transition, err = store.Step(c.before, event, c.Now); err != nil {
		return c, err
	}
	return c, unavailable(s.write(ctx, &c))
}

// token draws an attempt token above that of the record that is there. What is removed leaves nothing but the largest
// token of all of it: the token of a new record has to be above it, also where the clock was set back. It is rarely
// needed, so what is known of it here may be old. Therefore the statement that makes a record checks it, and if that is
// refused it is learned.
func (s *Store) token(now time.Time, before *store.Record) int64 {
	return store.NewToken(now, max(s.floor.Load(), before.Attempt))
}

// learnFloor reads which tokens may have been used by records that are gone.
func (s *Store) learnFloor(ctx context.Context) error {
	return s.with(ctx, func(conn *sql.Conn) error {
		var floor int64
		if err := conn.QueryRowContext(ctx, s.render(selectFloor)).Scan(&floor); err != nil {
			return err
		}
		for known := s.floor.Load(); known < floor && !s.floor.CompareAndSwap(known, floor); known = s.floor.Load() {
		}
		return nil
	})
}

// look reads the row of an ID with the clock.
func (s *Store) look(ctx context.Context, id store.ID, c *changed) error {
	c.found = row{hash: id.HashBytes()}
	return s.with(ctx, func(conn *sql.Conn) error {
		var now int64
		var readOnly string
		r := &c.found
		err := conn.QueryRowContext(ctx, s.render(selectRecord), r.hash[:]).Scan(&now, &readOnly,
			&r.attempt, &r.revision, &r.state, &r.due, &r.createdAt, &r.settledAt, &r.record, &r.content)
		c.exists = err == nil
		if errors.Is(err, sql.ErrNoRows) {
			err = conn.QueryRowContext(ctx, s.render(selectNow)).Scan(&now, &readOnly)
		}
		if err != nil {
			return err
		}
		if isOn(readOnly) {
			return ErrReadOnlyNode
		}
		c.Now = fromMicros(now)
		return nil
	})
}

// write carries an effect out, on the condition that the record is what was read.
func (s *Store) write(ctx context.Context, c *changed) error {
	found := &c.found
	switch c.Effect {
	case store.EffectRemove:
		if err := s.raise(ctx, found.attempt); err != nil {
			return err
		}
		err := s.writeOne(ctx, deleteRecord, found.hash[:], found.attempt, found.revision)
		if err == nil && c.before.ProviderID != "" {
			s.forgetProvider(ctx, found.attempt, found.hash[:])
		}
		return err
	case store.EffectWrite:
	default:
		return nil
	}
	c.wrote = encode(&c.Record)
	w := &c.wrote
	if err := s.noteProvider(ctx, &c.before, &c.Record); err != nil {
		return err
	}
	if !c.exists {
		return s.writeOne(ctx, insertRecord, w.hash[:], w.attempt, w.revision, w.state, w.due, w.createdAt, w.settledAt,
			w.record, w.content, w.attempt)
	}
	return s.writeOne(ctx, updateRecord, w.attempt, w.revision, w.state, w.due, w.createdAt, w.settledAt, w.record,
		w.content, found.hash[:], found.attempt, found.revision)
}

// raise makes sure that no token up to that of a record which is about to be removed is given out again.
func (s *Store) raise(ctx context.Context, attempt int64) error {
	_, err := s.execAgain(ctx, raiseFloor, attempt, attempt)
	if errors.Is(err, errUnanswered) {
		_, err = s.execAgain(ctx, raiseFloor, attempt, attempt) // which can be repeated
	}
	return err
}

// writeOne runs a statement that writes one row, or none if the record is no more what was read.
func (s *Store) writeOne(ctx context.Context, statement string, args ...any) error {
	result, err := s.exec(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errRace, err)
	}
	return nil
}

// exec runs a statement that is a transaction by itself. An error that leaves open whether it landed is marked so.
func (s *Store) exec(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	return s.execOnce(ctx, s.render(statement), args...)
}

// execOnce is exec for a statement that is rendered already.
func (s *Store) execOnce(ctx context.Context, statement string, args ...any) (result sql.Result, err error) {
	err = s.with(ctx, func(conn *sql.Conn) error {
		result, err = conn.ExecContext(ctx, statement, args...)
		return err
	})
	return result, unanswered(err)
}

// execAgain is exec that is repeated if it lost to another transaction, and so was undone.
func (s *Store) execAgain(ctx context.Context, statement string, args ...any) (result sql.Result, err error) {
	for failures := 1; ; failures++ {
		result, err = s.exec(ctx, statement, args...)
		if !undone(err) || failures >= maxRaces ||
			!backoff.Sleep(ctx, backoff.Jittered(racePause, maxRacePause, failures)) {
			return result, err
		}
	}
}

// unanswered finds out what became of a change whose reply was lost. A reservation is decided again, because its nonce
// finds the grant; any other change is made again only if it is certain that it was not made: an event without a fence,
// such as a bust, would meet what came since.
func (s *Store) unanswered(ctx context.Context, id store.ID, c *changed, event store.Event, cause error) error {
	if event.Kind == store.EventReserve {
		return fmt.Errorf("%w: %w", errRace, cause)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		var now changed
		err := s.look(ctx, id, &now)
		switch {
		case err == nil && c.madeOf(&now):
			return nil
		case err == nil && c.unmadeOf(&now):
			// Should it be under way still, one of the two finds another revision.
			return fmt.Errorf("%w: %w", errRace, cause)
		case err == nil:
			return unavailable(cause)
		}
		if !backoff.Sleep(ctx, backoff.Exponential(askPause, maxAskPause, failures)) {
			return unavailable(cause)
		}
	}
}

const (
	// askTimeout bounds how long it is asked what became of a write, for callers who would wait for longer.
	askTimeout = 30 * time.Second
	// How long it is waited between two questions.
	askPause    = 20 * time.Millisecond
	maxAskPause = time.Second
)

// madeOf reports whether the record is what the change made of it.
func (c *changed) madeOf(now *changed) bool {
	if c.Effect == store.EffectRemove {
		return !now.exists
	}
	return now.exists && now.found.revision == c.wrote.revision
}

// unmadeOf reports whether the record is what it was before the change.
func (c *changed) unmadeOf(now *changed) bool {
	return now.exists == c.exists && (!c.exists || now.found.revision == c.found.revision)
}

// get reads a record as it stands, and the clock.
func (s *Store) get(ctx context.Context, id store.ID) (rec store.Record, now time.Time, err error) {
	if err := errors.Join(left(ctx), s.ready()); err != nil {
		return rec, now, err
	}
	var c changed
	if err := s.look(ctx, id, &c); err != nil {
		return rec, now, unavailable(err)
	}
	if !c.exists {
		return rec, c.Now, store.ErrNotFound
	}
	rec, err = c.found.recordOf(id)
	return rec, c.Now, err
}
