package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// testTransactorOwnership lets handlers end the transaction that is not theirs to end (E1).
func testTransactorOwnership(t *testing.T, h Harness) {
	endings := []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer}
	names := []string{"rollback", "commit", "commit answer"}
	for i, end := range endings {
		h.test(t, "tx.Commit, then "+names[i], func(e *env) {
			e.meddles(end, func(ctx context.Context) { e.wantOwned("Commit", onceward.Tx(ctx).Commit()) })
		})
		h.test(t, "tx.Rollback, then "+names[i], func(e *env) {
			e.meddles(end, func(ctx context.Context) { e.wantOwned("Rollback", onceward.Tx(ctx).Rollback()) })
		})
		h.test(t, "a statement that ends it, then "+names[i], func(e *env) {
			for n, statement := range slices.Concat([]string{"COMMIT", "ROLLBACK"}, e.Business.Enders) {
				exec := func(ctx context.Context) { _, _ = onceward.Tx(ctx).ExecContext(ctx, statement) }
				e.meddlesWith(id(fmt.Sprint("before ", n)), end, func(ctx context.Context, insert func() error) error {
					err := insert()
					exec(ctx)
					return err
				})
				e.meddlesWith(id(fmt.Sprint("after ", n)), end, func(ctx context.Context, insert func() error) error {
					exec(ctx)
					return insert()
				})
			}
		})
	}
	h.test(t, "a failed statement, then commit", func(e *env) {
		e.meddles(store.TxCommit, func(ctx context.Context) {
			_, _ = onceward.Tx(ctx).ExecContext(ctx, "INSERT INTO no_such_table_anywhere VALUES (1)")
		})
	})
	h.test(t, "the transaction is over after the end", func(e *env) {
		var kept context.Context
		e.transacted(request(id("key")), func(ctx context.Context, _ store.Verdict) store.Settlement {
			kept = ctx
			return store.Settlement{Action: store.TxCommit, Completion: *answer("done")}
		}, store.DecisionExecute, "E1")
		if err := e.Business.Insert(kept, "late"); err == nil {
			e.Error("E1: a handler wrote through its transaction after it had ended")
		}
		e.wantRows("late", 0, "E1: what is written after the end")
	})
}

func (e *env) wantOwned(what string, err error) {
	e.Helper()
	if !errors.Is(err, store.ErrTxOwned) {
		e.Errorf("E1: %s by the handler got %v, want ErrTxOwned", what, err)
	}
}

// meddles writes a row and then does something to the transaction.
func (e *env) meddles(end store.TxAction, meddle func(ctx context.Context)) {
	e.Helper()
	e.meddlesWith(id("key"), end, func(ctx context.Context, insert func() error) error {
		err := insert()
		meddle(ctx)
		return err
	})
}

// meddlesWith runs work that does something to its transaction, and checks that what the caller is told is true: the work
// is never lost and acknowledged, nor kept and denied, and a retry does not do it twice.
func (e *env) meddlesWith(target store.ID, end store.TxAction, meddle func(ctx context.Context, insert func() error) error) {
	e.Helper()
	ended := store.TxRollback
	_, err := e.transact(request(target), func(ctx context.Context, _ store.Verdict) store.Settlement {
		if meddle(ctx, func() error { return e.Business.Insert(ctx, target.Key) }) != nil {
			return store.Settlement{Action: store.TxRollback}
		}
		ended = end
		return store.Settlement{Action: end, Completion: *answer("done")}
	})
	e.checkAtomic(target, target.Key, ended, err)
	if errors.Is(err, store.ErrOutcomeUnknown) {
		e.wantState(target, store.StateUnknown, "E1: a transaction that was ended by its handler is recorded as unknown")
	}
	again, err := e.transact(request(target), e.inserting(target.Key, committing("done")))
	e.must(err)
	if rows := e.Business.Count(target.Key); rows > 1 {
		e.Errorf("S1: after a retry that got %s the operation took effect %d times", again.Decision, rows)
	}
}
