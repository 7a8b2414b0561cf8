package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/store"
)

// testTransactorLeft checks what work may leave open in its transaction by way of database/sql: rows that it did not
// close, and statements that it cancelled.
func testTransactorLeft(t *testing.T, h Harness) {
	for name, end := range map[string]store.TxAction{"commit": store.TxCommit, "commit the answer": store.TxCommitAnswer} {
		h.test(t, "rows left open, "+name, func(e *env) { e.leaveRows(end) })
	}
	for name, end := range map[string]store.TxAction{
		"commit": store.TxCommit, "commit the answer": store.TxCommitAnswer, "roll back": store.TxRollback,
	} {
		h.test(t, "a statement given up, "+name, func(e *env) { e.giveUp(end) })
	}
}

// leaveRows makes work leave rows open after reading one of them. database/sql closes them at a commit, and so does the
// store: the writes are committed.
func (e *env) leaveRows(end store.TxAction) {
	for i := range 2000 {
		_, err := e.Business.Pool.ExecContext(e.ctx, fmt.Sprintf(`INSERT INTO business VALUES ('row %d')`, i))
		e.must(err)
	}
	e.transacted(request(id("key")), e.inserting("written", func(ctx context.Context, _ store.Verdict) store.Settlement {
		tx, _ := store.LookupTx(ctx)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // as the context of a request ends with its handler
		rows, err := tx.QueryContext(ctx, `SELECT value FROM business`)
		if err != nil || !rows.Next() {
			e.Errorf("there are no rows: %v", err)
		}
		return store.Settlement{Action: end, Completion: *answer("done")}
	}), store.DecisionExecute, "E1")
	e.transacted(request(id("key")), e.refusing("I1"), store.DecisionReplay, "I2")
	want := 0
	if end == store.TxCommit {
		want = 1
	}
	e.wantRows("written", want, "I1")
}

// giveUp makes work cancel a statement, by the end of its context. The connection is lost with it, and nothing was
// executed: the error names the reason.
func (e *env) giveUp(end store.TxAction) {
	_, err := e.transact(request(id("key")), e.inserting("written", func(ctx context.Context, _ store.Verdict) store.Settlement {
		tx, _ := store.LookupTx(ctx)
		// The context may end before the statement is sent. Then the connection is not lost.
		for wait, kept := 50*time.Millisecond, true; kept && e.ctx.Err() == nil; wait *= 2 {
			short, cancel := context.WithTimeout(ctx, wait)
			if _, err := tx.ExecContext(short, e.Business.Slow); err == nil {
				e.Errorf("the statement was not given up")
			}
			cancel()
			_, err := tx.ExecContext(ctx, `SELECT 1`)
			kept = err == nil
		}
		return store.Settlement{Action: end, Completion: *answer("done")}
	}))
	if end != store.TxRollback || err != nil {
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "its own context ended") ||
			!strings.Contains(err.Error(), e.Business.Slow) {
			e.Errorf("work that gave up a statement got %v, want an error that names the statement and why", err)
		}
	}
	e.wantRows("written", 0, "I1")
	if _, err := e.Store.Get(e.ctx, id("key")); !errors.Is(err, store.ErrNotFound) {
		e.Errorf("I1: there is a record of what was not executed: %v", err)
	}
}
