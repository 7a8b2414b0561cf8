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

// The statements that change a record as [store.Step] decides. A record is read without a lock, and written on the
// condition that its attempt and revision are unchanged. If another write came first, the statement matches no row, and
// the change is decided again. So a process that stops in the middle holds no locks.
const (
	// selectRecord reads a record together with the clock. selectNow reads the clock alone, if there is no record: a
	// join that always returns a row would slow down every replay.
	selectRecord = `SELECT @now, @@global.read_only, ` + allColumns + ` FROM @record r WHERE r.hash = ?`
	selectNow    = `SELECT @now, @@global.read_only`
	// insertRecord creates a record, unless its token may have been used by a removed record.
	insertRecord = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, record, content)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, ? FROM @meta WHERE name = 'max_removed_attempt' AND value < ?`
	updateRecord = `UPDATE @record SET attempt = ?, revision = ?, state = ?, due = ?, created_at = ?,
			settled_at = ?, record = ?, content = ?
		WHERE hash = ? AND attempt = ? AND revision = ?`
	// selectFloor reads the largest token of the removed records.
	selectFloor = `SELECT m.value FROM @meta m WHERE m.name = 'max_removed_attempt'`
	// raiseFloor runs before a statement that removes records. If
	// that statement does not follow, the raised floor does no harm.
	raiseFloor   = `UPDATE @meta SET value = ? WHERE name = 'max_removed_attempt' AND value < ?`
	deleteRecord = `DELETE FROM @record WHERE hash = ? AND attempt = ? AND revision = ?`
)

// changed is a record before and after an event.
type changed struct {
	store.Applied
	before store.Record
	// found is the row that was read, if exists is true, and wrote is the row that replaced it.
	found, wrote row
	exists       bool
}

const (
	// maxRaces is the most times that a change is tried while other
	// writes come first. Each time one of the writers succeeds.
	maxRaces = 50
	// maxLocked is the most times that a change waits for a locked row.
	maxLocked = 2
)

// errRace means that another write changed the record after it was read. Nothing was written.
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

// racePause and maxRacePause bound the pause before a change is retried after a conflict.
const (
	racePause    = 200 * time.Microsecond
	maxRacePause = 50 * time.Millisecond
)

// busy returns an error that means that another transaction has locked the record.
func busy(err error) error { return fmt.Errorf("%w: mysql: %w", store.ErrBusy, err) }

// changeOnce reads the record, applies the event and writes the result.
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

// token draws an attempt token above the token of the existing record. Removed records leave only the largest of their
// tokens, the floor. The token of a new record must be above the floor, even if the clock was set back. The floor
// rarely matters, so the value that this process has read may be old. The statement that creates a record therefore
// checks the token, and if that check fails, learnFloor reads the floor.
func (s *Store) token(now time.Time, before *store.Record) int64 {
	return store.NewToken(now, max(s.floor.Load(), before.Attempt))
}

// learnFloor reads the largest token that removed records may have used.
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

// look reads the row of an ID, and the clock.
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

// write carries out the effect of an event, on the condition that the record is unchanged since it was read.
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

// raise ensures that no token up to attempt is issued again. It runs before the record with that token is removed.
func (s *Store) raise(ctx context.Context, attempt int64) error {
	_, err := s.execAgain(ctx, raiseFloor, attempt, attempt)
	if errors.Is(err, errUnanswered) {
		_, err = s.execAgain(ctx, raiseFloor, attempt, attempt) // it can be repeated
	}
	return err
}

// writeOne runs a statement that writes one row. It returns errRace if the record has changed since it was read.
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

// exec runs a statement that is a transaction of its own. If an error leaves
// open whether the statement was committed, exec wraps it with errUnanswered.
func (s *Store) exec(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	return s.execOnce(ctx, s.render(statement), args...)
}

// execOnce is exec for a statement that is already rendered.
func (s *Store) execOnce(ctx context.Context, statement string, args ...any) (result sql.Result, err error) {
	err = s.with(ctx, func(conn *sql.Conn) error {
		result, err = conn.ExecContext(ctx, statement, args...)
		return err
	})
	return result, unanswered(err)
}

// execAgain is exec for a statement that is retried if the server undid it because of another transaction.
func (s *Store) execAgain(ctx context.Context, statement string, args ...any) (result sql.Result, err error) {
	for failures := 1; ; failures++ {
		result, err = s.exec(ctx, statement, args...)
		if !undone(err) || failures >= maxRaces ||
			!backoff.Sleep(ctx, backoff.Jittered(racePause, maxRacePause, failures)) {
			return result, err
		}
	}
}

// unanswered finds out the outcome of a change whose reply was lost. A reservation is decided again, because its nonce
// finds the grant. Any other change is retried only if it certainly was not made: an event without a fence, such as a
// bust, would otherwise change a newer record.
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
			// If the first write is still running, one of the two writes finds another revision.
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
	// askTimeout bounds the time to find out the outcome of a write, for callers who would wait longer.
	askTimeout = 30 * time.Second
	// askPause and maxAskPause bound the pause between two queries for the outcome.
	askPause    = 20 * time.Millisecond
	maxAskPause = time.Second
)

// madeOf reports whether the record is now the result of the change.
func (c *changed) madeOf(now *changed) bool {
	if c.Effect == store.EffectRemove {
		return !now.exists
	}
	return now.exists && now.found.revision == c.wrote.revision
}

// unmadeOf reports whether the record is still the same as before the change.
func (c *changed) unmadeOf(now *changed) bool {
	return now.exists == c.exists && (!c.exists || now.found.revision == c.found.revision)
}

// get reads the committed record, and the clock.
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
