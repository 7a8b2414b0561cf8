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

// settleTimeout bounds what follows the work.
const settleTimeout = 15 * time.Second

// exactlyOne stops a commit if the statement in front of it did not write one row: a subquery of two rows is an error.
var exactlyOne = stmt(`SET @onceward_written = IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION ALL SELECT 2))`)

const (
	// errorTwoRows is what exactlyOne says.
	errorTwoRows = 1242
	// errorOutOfRange is what checkToken says of a token that may have been used.
	errorOutOfRange = 1690
)

// commit is the last round trip: the savepoint, by which a transaction that was ended is noticed, the messages of the
// answer, what the plan writes, and COMMIT.
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
	offset := len(statements) + 1 // ending puts one in front
	statements = t.ending(append(append(statements, t.plan.write()...), commit)...)
	all, err := t.link.exec(time.Now().Add(settleTimeout), statements...)
	if err != nil {
		err = t.failed(err)
	} else {
		t.plan.wrote(all.ids[offset:])
	}
	if err == nil && t.adds.Load() {
		t.store.messages.Wake() // those in this process who wait for messages
	}
	return err
}

// failed finds out what became of a last round trip that ended in an error. The error does not tell which of its
// statements failed.
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

// fenceClaim makes certain that the transaction which has claimed a record is over, or is not committed any more, so
// that the record tells what became of it. On the server that had it, the row that stands for the record is locked
// until then. On a cluster another node may be asked, which knows no locks of the first: there a write to the same row,
// committed in between, makes certain that the other one is refused if it still comes.
func (s *Store) fenceClaim(ctx context.Context, id store.ID) error {
	name := claimOf(id)
	return s.fence(ctx, stmt(s.render(insertClaim), name), stmt(s.render(deleteClaim), name))
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
