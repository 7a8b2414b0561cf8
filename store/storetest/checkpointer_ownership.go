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

// testCheckpointerOwnership lets steps end the transaction that is not theirs to end. Whatever they say then, they are told
// the truth of what was committed.
func testCheckpointerOwnership(t *testing.T, h Harness) {
	for name, failure := range map[string]error{"success": nil, "an error": errDeclined} {
		h.test(t, "tx.Commit, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				e.wantOwned("Commit", onceward.Tx(ctx).Commit())
				return err
			})
			e.wantKept(failure == nil)
		})
		h.test(t, "tx.Rollback, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				e.wantOwned("Rollback", onceward.Tx(ctx).Rollback())
				return err
			})
			e.wantKept(failure == nil)
		})
		h.test(t, "a statement that ends it, then "+name, func(e *env) {
			for n, statement := range slices.Concat([]string{"COMMIT", "ROLLBACK"}, e.Business.Enders) {
				exec := func(ctx context.Context) { _, _ = onceward.Tx(ctx).ExecContext(ctx, statement) }
				e.stepMeddles(id(fmt.Sprint("before ", n)), failure, func(ctx context.Context, insert func() error) error {
					err := insert()
					exec(ctx)
					return err
				})
				e.stepMeddles(id(fmt.Sprint("after ", n)), failure, func(ctx context.Context, insert func() error) error {
					exec(ctx)
					return insert()
				})
			}
		})
		h.test(t, "a failed statement, then "+name, func(e *env) {
			e.stepMeddles(id("key"), failure, func(ctx context.Context, insert func() error) error {
				err := insert()
				if _, failed := onceward.Tx(ctx).ExecContext(ctx, "INSERT INTO no_such_table_anywhere VALUES (1)"); failed == nil {
					e.Error("a statement on a table that does not exist went through")
				}
				return err
			})
		})
	}
	h.test(t, "the transaction is over after the end", func(e *env) {
		for name, failure := range map[string]error{"success": nil, "an error": errDeclined} {
			var kept context.Context
			err := e.checkpointTx(e.own(id(name)), func(ctx context.Context) (store.Checkpoint, error) {
				kept = ctx
				return checkpointAt("charged"), failure
			})
			if !errors.Is(err, failure) {
				e.Errorf("E3: a step that ended with %v got %v", failure, err)
			}
			if err := e.Business.Insert(kept, "late"); err == nil {
				e.Error("E3: a step wrote through its transaction after it had ended")
			}
		}
		e.must(e.checkpointTx(e.own(id("next")), reaching("charged")))
		e.wantRows("late", 0, "E3: what is written after the end")
	})
}

// wantKept checks that a step to which the end of its transaction was refused went on as if it had not asked.
func (e *env) wantKept(kept bool) {
	e.Helper()
	rows := 0
	if kept {
		rows = 1
	}
	e.wantRows("key", rows, "E3: a step that was refused to end its transaction")
}

// stepMeddles runs a step that does something to its transaction, and checks that what it is told is true.
func (e *env) stepMeddles(target store.ID, failure error, meddle func(ctx context.Context, insert func() error) error) {
	e.Helper()
	c := e.own(target)
	err := e.checkpointTx(c, func(ctx context.Context) (store.Checkpoint, error) {
		if err := meddle(ctx, func() error { return e.Business.Insert(ctx, target.Key) }); err != nil {
			return store.Checkpoint{}, err
		}
		return checkpointAt("charged"), failure
	})
	if err == nil && failure != nil {
		e.Errorf("E3: a step that failed got no error")
	}
	e.checkStep(c, target.Key, "charged", err)
	e.must(e.checkpointTx(c, e.stepping(target.Key+", next", reaching("shipped"))))
	e.checkStep(c, target.Key+", next", "shipped", nil)
}
