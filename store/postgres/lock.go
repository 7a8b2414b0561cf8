package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// locking is how transactions exclude each other: by the advisory locks of the server or, where those do nothing, by
// rows of a small table. A transaction inserts a row and deletes it at once, and no other can insert the same before it
// ends. Either way the lock goes with its transaction, whatever becomes of that.
type locking int

const (
	advisoryLocks locking = iota
	// doubleLocks are rows, and the advisory locks beside them. Where those do exclude after all, programs that rely on
	// rows and programs that do not keep each other out.
	doubleLocks
	// rowLocks are for servers without advisory locks.
	rowLocks
)

// The spaces of locks, which are apart from each other: those of one number, for records and operations, and those of
// two, for names and lanes, which are apart from the locks of one number that applications often use.
const (
	oneNumber  = "1::smallint"
	twoNumbers = "2::smallint"
)

// rows reports whether rows exclude.
func (l locking) rows() bool { return l != advisoryLocks }

// try is an expression that takes a lock of one number if it is free, and says whether it was.
func (l locking) try(key string) string {
	return l.both(`pg_try_advisory_xact_lock(`+key+`)`, `@try_lock(`+oneNumber+`, `+key+`)`)
}

// take is an expression that waits for a lock of one number, takes it, and is true. What the server's functions return
// is void, which is empty as a text, or null in those of some servers.
func (l locking) take(key string) string {
	return l.both(`coalesce(pg_advisory_xact_lock(`+key+`)::text, '') = ''`, `@take_lock(`+oneNumber+`, `+key+`)`)
}

// takePair is take for a lock of two numbers, which are the halves of the key.
func (l locking) takePair(key string) string {
	halves := `(` + key + ` >> 32)::integer, (` + key + ` << 32 >> 32)::integer`
	return l.both(`coalesce(pg_advisory_xact_lock(`+halves+`)::text, '') = ''`, `@take_lock(`+twoNumbers+`, `+key+`)`)
}

// both is the expression for advisory locks, that for rows, or one after the other.
func (l locking) both(advisory, row string) string {
	switch l {
	case advisoryLocks:
		return advisory
	case rowLocks:
		return row
	default:
		return advisory + ` AND ` + row
	}
}

// A row is written for each lock, so one is not taken for an answer that is there: it is replayed without.
const answerThere = `CASE WHEN EXISTS (SELECT FROM @record WHERE id = HASH AND state = 20 AND due > @now())
	THEN false ELSE LOCK END`

// claims are the statements by which a transaction begins: the second bounds its idleness, by its last parameter. The
// first parameter is the key of the lock, and with rows the second one is the hash of a record whose answer does.
func (l locking) claims() (plain, bounded string) {
	lock, last := l.try(`$1::bigint`), "$2"
	if l.rows() {
		lock, last = strings.NewReplacer("HASH", "$2", "LOCK", lock).Replace(answerThere), "$3"
	}
	return strings.ReplaceAll(claim, "LOCK", lock), strings.NewReplacer("LOCK", lock, "IDLE", last).Replace(claimBounded)
}

// held is the statement that looks whether a transaction is in flight. A row is looked at by taking it, which is to be
// undone.
func (l locking) held() string {
	row := `NOT ` + rowLocks.try(`$1::bigint`)
	switch l {
	case advisoryLocks:
		return `SELECT ` + lockHeld
	case rowLocks:
		return `SELECT ` + row
	default:
		return `SELECT ` + lockHeld + ` OR ` + row
	}
}

// promotes is the statement by which one session at a time promotes messages. The function outbox_promote takes the
// same locks, in the same order. No lane is zero, and no lock of a lane has a second number that is.
func (l locking) promotes() string {
	const advisory, row = `pg_advisory_xact_lock('@outbox'::regclass::oid::integer, 0)`, `@take_lock(` + twoNumbers + `, 0)`
	switch l {
	case advisoryLocks:
		return `SELECT ` + advisory
	case rowLocks:
		return `SELECT ` + row
	default:
		return `SELECT CASE WHEN ` + row + ` THEN ` + advisory + ` END`
	}
}

// errNoRowLocks says what a user lacks who cannot take row locks.
var errNoRowLocks = errors.New("advisory locks do nothing here, or it could not be found out, and rows cannot take their " +
	"place: GRANT SELECT, INSERT, DELETE on the table of locks to this user, or use WithAdvisoryLocks if they do exclude")

// tryRowLock makes sure, before a caller relies on it, that row locks can be taken.
func (s *Store) tryRowLock(ctx context.Context) error {
	if !s.locking.rows() || s.options.readOnly {
		return nil
	}
	_, err := s.rowHeld(ctx, s.names.render(`SELECT NOT `+rowLocks.try(`$1::bigint`)), randomKey())
	if sqlState(err) == stateInsufficientRights {
		return fmt.Errorf("%w (%s): %w", errNoRowLocks, s.names.render(`@lock`), err)
	}
	return err
}

// lockHeldBy looks whether a transaction has the lock of a record.
func (s *Store) lockHeldBy(ctx context.Context, hash [16]byte) (held bool, err error) {
	text := s.names.render(s.locking.held())
	if s.locking.rows() {
		return s.rowHeld(ctx, text, s.lockKey(hash))
	}
	err = s.own.QueryRow(ctx, text, s.lockKey(hash)).Scan(&held)
	return held, err
}

// rowHeld asks in a transaction that is undone: so what it takes is free again at once, without a write to the disk.
func (s *Store) rowHeld(ctx context.Context, text string, args ...any) (held bool, err error) {
	err = repeatUndone(ctx, func() error {
		batch := &pgx.Batch{}
		batch.Queue(begin)
		batch.Queue(text, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
		batch.Queue(`ROLLBACK`)
		return s.own.transact(ctx, batch)
	})
	return held, err
}
