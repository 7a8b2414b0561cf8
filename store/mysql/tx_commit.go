package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/store"
)

// settleTimeout bounds what follows the work.
const settleTimeout = 15 * time.Second

// exactlyOne stops a commit if the statement in front of it did not write one row: a subquery of two rows is an error.
var exactlyOne = stmt(`SET @onceward_written = IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION ALL SELECT 2))`)

// commit is the last round trip: the savepoint, by which a transaction that was ended is noticed, the messages of the
// answer, what the plan writes, and COMMIT.
func (t *transaction) commit(first ...statement) error {
	if err := t.plan.prepare(); err != nil {
		t.gate.undone = t.gate.undone || undone(err) || locked(err)
		return t.undo(err, releaseSavepoint, rollback)
	}
	statements := append(first, t.addMessages()...)
	offset := len(statements)
	statements = t.ending(append(append(statements, t.plan.write()...), commit)...)
	all, err := t.link.exec(time.Now().Add(settleTimeout), statements...)
	if err != nil {
		err = t.failed(err)
	} else {
		t.plan.wrote(all.ids[offset:])
	}
	if err == nil && t.adds.Load() {
		t.store.messages.wake() // those in this process who wait for messages
	}
	return err
}

// failed finds out what became of a last round trip that ended in an error. The error does not tell which of its
// statements failed.
func (t *transaction) failed(cause error) error {
	if mysqlNumber(cause) == errorNoSavepoint {
		_ = t.rollback()
		return t.plan.spoiled(errEnded, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), txAskTimeout)
	defer cancel()
	if !t.keyed {
		return t.plan.learned(ctx, cause)
	}
	t.link.cut()
	t.kill()
	for n := 1; ; n++ {
		err := t.plan.learned(ctx, cause)
		if !errors.Is(err, errNotLearned) {
			return err
		}
		if !backoff.Sleep(ctx, backoff.Exponential(askPause, maxAskPause, n)) {
			return fmt.Errorf("%w: commit: %w; then the server could not be asked what became of it: %w",
				store.ErrOutcomeUnknown, cause, err)
		}
	}
}

// errNotLearned says that the question what became of a commit has to be asked again.
var errNotLearned = errors.New("it is not known yet")

// txAskTimeout is how long the outcome of a commit is asked after, through restarts of the server.
const txAskTimeout = 20 * time.Second

// believe says what became of a commit that no record tells of. What the server itself refused was not committed.
func (t *transaction) believe(cause error) error {
	if answered(cause) {
		if t.rollback() != nil {
			t.link.cut()
		}
		return notCommitted(cause)
	}
	t.link.cut()
	return fmt.Errorf("%w: commit: %w", store.ErrOutcomeUnknown, cause)
}

// notCommitted is the error of a transaction that was certainly not committed.
func notCommitted(cause error) error {
	if undone(cause) || locked(cause) || unfit(cause) {
		return &undoneError{cause}
	}
	return unavailable(fmt.Errorf("commit: %w", cause))
}

// Where the reply to a commit was lost, the record tells what became of it, once the transaction is over. On the server
// that had it, the row that it wrote is locked until then. On a cluster another node may be asked, which knows no locks of
// the first: there a write to the same row, committed in between, makes certain that the other one is refused if it still
// comes. That write is the fence; elsewhere it does no harm.
const (
	lockRecord   = `SELECT ` + allColumns + ` FROM @record r WHERE r.hash = ? FOR UPDATE`
	insertAbsent = `INSERT INTO @record (hash, attempt, revision, state, due, created_at, settled_at, id, record)
		VALUES (?, 0, 0, 0, 0, 0, 0, x'', x'')`
	deleteAbsent = `DELETE FROM @record WHERE hash = ? AND attempt = 0`
	touchRow     = `UPDATE @record SET revision = revision + 1 WHERE hash = ? AND attempt = ? AND revision = ?`
)

// lookLocked reads a row by its hash, behind a lock that waits for transactions which have written it.
func (s *Store) lookLocked(ctx context.Context, r *row) (found bool, err error) {
	err = s.with(ctx, func(conn *sql.Conn) error {
		err := conn.QueryRowContext(ctx, s.render(lockRecord), r.hash[:]).Scan(&r.attempt, &r.revision, &r.state,
			&r.due, &r.createdAt, &r.settledAt, &r.id, &r.record, &r.body, &r.data)
		if found = err == nil; errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return found, err
}

// fenceAbsent makes certain that a transaction which wanted to make a record does not.
func (s *Store) fenceAbsent(ctx context.Context, hash [16]byte) error {
	return s.fence(ctx, stmt(s.render(insertAbsent), hash[:]), stmt(s.render(deleteAbsent), hash[:]))
}

// fenceRow makes certain that a transaction which wanted to write over a row does not.
func (s *Store) fenceRow(ctx context.Context, r *row) error {
	return s.fence(ctx, stmt(s.render(touchRow), r.hash[:], r.attempt, r.revision), exactlyOne)
}

// fence commits statements in a transaction of its own.
func (s *Store) fence(ctx context.Context, statements ...statement) error {
	texts := []string{`START TRANSACTION`}
	for i := range statements {
		texts = append(texts, statements[i].literal())
	}
	return s.with(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, strings.Join(append(texts, `COMMIT`), "; "))
		if err != nil {
			discard(conn) // it may be in a transaction
		}
		return err
	})
}
