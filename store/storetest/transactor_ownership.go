package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// testTransactorOwnership makes handlers end the transaction, which they must not end (E1).
func testTransactorOwnership(t *testing.T, h Harness) {
	if !h.probe.Business.Collects {
		testStatementsThatEnd(t, h)
	}
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

// testStatementsThatEnd makes handlers end a *sql.Tx, by its methods and by statements.
func testStatementsThatEnd(t *testing.T, h Harness) {
	actions := []store.TxAction{store.TxRollback, store.TxCommit, store.TxCommitAnswer}
	names := []string{"rollback", "commit", "commit answer"}
	for i, end := range actions {
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

// meddlesWith runs work that does something to its transaction, and checks that the result that the caller gets is
// true: the work is never lost and acknowledged, nor kept and denied, and a retry does not do it twice.
func (e *env) meddlesWith(target store.ID, end store.TxAction,
	meddle func(ctx context.Context, insert func() error) error,
) {
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
		e.wantState(target, store.StateUnknown,
			"E1: a transaction that was ended by its handler is recorded as unknown")
	}
	again, err := e.transact(request(target), e.inserting(target.Key, committing("done")))
	e.must(err)
	if rows := e.Business.Count(target.Key); rows > 1 {
		e.Errorf("S1: after a retry that got %s the operation took effect %d times", again.Decision, rows)
	}
}

// lateLease is the lease of work that does not return: short, because the test waits for its end on every clock.
const lateLease = 300 * time.Millisecond

// transactNeverReturns makes work hang past its lease, with or without an open result. E8: its key is free again
// although the work still runs, and later writes and results of the work have no effect.
func transactNeverReturns(e *env) {
	for i, open := range []bool{false, true}[:e.openable()] {
		target := ids(i + 1)[i]
		late := e.startLate(target, open)
		e.awaitFree(target)
		second := e.inserting(target.Key, committing("second"))
		e.transacted(request(target), second, store.DecisionExecute, "E8: no path leaves a key locked past its lease")
		if e.Store.(store.Transactor).InFlight(target) {
			e.Error("E8: InFlight sees a transaction that was revoked")
		}
		late.finish(e)
		e.wantRows(target.Key, 1, "I1: the first was undone, and the second committed")
		e.wantRows("late", 0, "E1: work that is late writes nothing")
		v := e.transacted(request(target), e.refusing("I1: a retry"), store.DecisionReplay, "I3")
		e.sameResponse("the replay", v.Record.Response, answer("second").Response)
	}
}

// openable returns in how many ways the work of this store can hang: also with an open result, if the store has any.
func (e *env) openable() int {
	if e.Business.Collects {
		return 1
	}
	return 2
}

// lateWork is work that hangs until it is released.
type lateWork struct {
	letGo    chan struct{}
	release  func() // closes letGo
	ended    chan error
	writeErr error
}

// startLate begins work that writes a row and then hangs. On a machine that stands still the lease may be over before
// the work hangs: then it tries a longer one.
func (e *env) startLate(target store.ID, open bool) *lateWork {
	e.Helper()
	for bound := lateLease; ; bound *= 4 {
		late, entered := e.tryLate(target, open, bound)
		select {
		case <-entered:
			return late
		case err := <-late.ended:
			if err != nil && !errors.Is(err, store.ErrDeadline) || bound > patience {
				e.Fatalf("work that hangs did not begin: %v", err)
			}
		case <-e.ctx.Done():
			e.Fatal("work that hangs did not begin")
		}
	}
}

// tryLate is startLate with one lease. The channel is closed when the work hangs.
func (e *env) tryLate(target store.ID, open bool, bound time.Duration) (*lateWork, <-chan struct{}) {
	late := &lateWork{letGo: make(chan struct{}), ended: make(chan error, 1)}
	late.release = sync.OnceFunc(func() { close(late.letGo) })
	var running sync.WaitGroup
	e.Cleanup(func() {
		late.release()
		running.Wait()
	})
	entered := make(chan struct{})
	hang := func(ctx context.Context, _ store.Verdict) store.Settlement {
		if open {
			rows, err := onceward.Tx(ctx).QueryContext(ctx, `SELECT 1 UNION SELECT 2`)
			if err != nil {
				return store.Settlement{Action: store.TxRollback}
			}
			defer rows.Close()
			if !rows.Next() {
				return store.Settlement{Action: store.TxRollback}
			}
		}
		close(entered)
		<-late.letGo
		late.writeErr = e.Business.Insert(ctx, "late")
		return store.Settlement{Action: store.TxCommit, Completion: *answer("late")}
	}
	running.Go(func() {
		_, err := e.transact(request(target, lease(bound)), e.inserting(target.Key, hang))
		late.ended <- err
	})
	return late, entered
}

// awaitFree waits until a key is no longer in flight.
func (e *env) awaitFree(target store.ID) {
	e.Helper()
	store := e.Store.(store.Transactor)
	await.That(e, "E8: work whose lease is over does not lock its key", func() bool { return !store.InFlight(target) })
}

// finish releases the work, and checks that it has no effect.
func (late *lateWork) finish(e *env) {
	e.Helper()
	late.release()
	err := await.Value(e, "the end of late work", late.ended)
	if late.writeErr == nil {
		e.Error("E1: work that is late could write")
	}
	undone := errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrOutcomeUnknown)
	if !undone || !errors.Is(err, store.ErrDeadline) {
		e.Errorf("E5: work that is late ended in %v, want ErrUnavailable and ErrDeadline: nothing was executed", err)
	}
}
