package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/sqltx"
	"github.com/onceward/onceward/store"
)

// settleTimeout bounds the store's own round trips before and after the work.
const settleTimeout = 15 * time.Second

// exactlyOne stops a commit if the statement before it did not
// write exactly one row: a subquery of two rows is an error.
var exactlyOne = stmt(`SET @onceward_written = IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION ALL SELECT 2))`)

const (
	// errorTwoRows is the error of exactlyOne.
	errorTwoRows = 1242
	// errorOutOfRange is the error of checkToken for a token that may have been used.
	errorOutOfRange = 1690
)

// commit runs the last round trip: the savepoint, which shows whether the transaction was ended before, the messages of
// the answer, the statements that the plan writes, and COMMIT.
func (t *transaction) commit(first ...statement) error {
	if err := t.plan.prepare(); undone(err) {
		return t.gone(err, nil)
	} else if err != nil {
		if locked(err) {
			t.gate.Meet(err)
		}
		return t.undo(err, releaseSavepoint, rollback)
	}
	statements := append(first, t.addMessages()...)
	offset := len(statements) + 1 // ending puts one statement in front
	statements = t.ending(append(append(statements, t.plan.write()...), commit)...)
	all, err := t.link.exec(time.Now().Add(settleTimeout), statements...)
	if err != nil {
		err = t.failed(err)
	} else {
		t.plan.wrote(all.ids[offset:])
	}
	if err == nil && t.adds.Load() {
		t.store.messages.Wake() // wakes the workers of this process
	}
	return err
}

// failed finds out the outcome of a last round trip that ended in
// an error. The error does not show which of its statements failed.
func (t *transaction) failed(cause error) error {
	switch {
	case mysqlNumber(cause) == errorNoSavepoint:
		_ = t.rollback()
		return t.plan.spoiled(errEnded, nil)
	case undone(cause) && t.gate.Ending.Load():
		return t.gone(cause, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), txAskTimeout)
	defer cancel()
	if !t.keyed {
		return t.plan.learned(ctx, cause)
	}
	if !answered(cause) || t.rollback() != nil {
		t.link.cut()
		t.kill()
	}
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

// errNotLearned means that the outcome of a commit is not known yet, and must be queried again.
var errNotLearned = errors.New("it is not known yet")

// txAskTimeout bounds how long the outcome of a commit is queried, through restarts of the server.
const txAskTimeout = 20 * time.Second

// believe returns the outcome of a commit that no record shows.
// If the server itself refused the commit, nothing was committed.
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

// notCommitted returns the error of a transaction that was certainly not committed.
func notCommitted(cause error) error {
	n := mysqlNumber(cause)
	if undone(cause) || locked(cause) || unfit(cause) || duplicate(cause) || n == errorTwoRows || n == errorOutOfRange {
		return &sqltx.UndoneError{Cause: fmt.Errorf("commit: %w", cause)}
	}
	if tooLarge(cause) {
		return fmt.Errorf("%w: the answer and its messages do not fit into the server's max_allowed_packet: %w",
			store.ErrWorkRefused, cause)
	}
	return unavailable(fmt.Errorf("commit: %w", cause))
}

// fenceClaim ensures that the transaction that has claimed a record has ended or can no longer be committed, so that
// the record shows its outcome. On the server of the transaction, the row that stands for the record is locked until
// the transaction ends. In a cluster the call may reach another node, which does not know the locks of the first. There
// a committed write to the same row ensures that the transaction is refused if it commits later.
func (s *Store) fenceClaim(ctx context.Context, id store.ID) error {
	name := claimOf(id)
	return s.fence(ctx, stmt(s.render(insertClaim), name), stmt(s.render(deleteClaim), name))
}

// fence commits statements in a transaction of their own.
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
