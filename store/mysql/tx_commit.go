package mysql

import (
	"context"
	"errors"
	"fmt"
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
	statements = t.ending(append(append(statements, t.plan.write()...), commit))
	ids, err := t.link.exec(time.Now().Add(settleTimeout), statements...)
	if err != nil {
		err = t.failed(err)
	} else {
		t.plan.wrote(ids[offset:])
	}
	if err == nil && t.adds.Load() {
		t.store.messages.wake() // those in this process who wait for messages
	}
	return err
}

// failed finds out what became of a last round trip that ended in an error. The error does not tell which of its
// statements failed.
func (t *transaction) failed(cause error) error {
	if number(cause) == errorNoSavepoint {
		_ = t.rollback()
		return t.plan.spoiled(errEnded, nil)
	}
	if !t.keyed {
		return t.believe(cause)
	}
	t.link.cut()
	t.kill()
	ctx, cancel := context.WithTimeout(context.Background(), txAskTimeout)
	defer cancel()
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

// lockAnyRecord waits until no transaction that is under way has written the record, and reads it then.
const lockAnyRecord = `SELECT ` + columns + ` FROM @record r WHERE r.hash = ? FOR UPDATE`

// ask reads the record when the transaction, which has locked it, is over. A record in StateNone stands for none.
func (t *transaction) ask(ctx context.Context) (rec store.Record, err error) {
	r := row{hash: t.id.HashBytes()}
	found, err := t.store.lookLocked(ctx, &r)
	switch {
	case err != nil:
		return rec, fmt.Errorf("%w: %w", errNotLearned, err)
	case !found:
		return rec, nil
	}
	return r.recordOf(t.id)
}
