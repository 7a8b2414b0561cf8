package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store"
)

// lateLease is that of work that does not return: short, because its end is waited for by every clock.
const lateLease = 300 * time.Millisecond

// transactNeverReturns has work hang past its lease, with a result open or not. E8: its key is free again although
// it still runs, and what it does and returns later comes to nothing.
func transactNeverReturns(e *env) {
	for i, open := range []bool{false, true} {
		target := ids(i + 1)[i]
		late := e.startLate(target, open)
		e.awaitFree(target)
		second := e.inserting(target.Key, committing("second"))
		e.transacted(request(target), second, store.DecisionExecute, "E8: no path leaves a key locked past its lease")
		if e.Store.(store.Transactor).InFlight(target) {
			e.Error("E8: InFlight sees a transaction that was taken back")
		}
		late.finish(e)
		e.wantRows(target.Key, 1, "I1: the first was undone, and the second committed")
		e.wantRows("late", 0, "E1: work that is late writes nothing")
		v := e.transacted(request(target), e.refusing("I1: a retry"), store.DecisionReplay, "I3")
		e.sameResponse("the replay", v.Record.Response, answer("second").Response)
	}
}

// lateWork is work that hangs until it is let go.
type lateWork struct {
	letGo    chan struct{}
	release  func() // closes letGo
	ended    chan error
	writeErr error
}

// startLate begins work that writes a row and then hangs.
func (e *env) startLate(target store.ID, open bool) *lateWork {
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
			if err != nil || !rows.Next() {
				e.Errorf("a query that is left open: %v", err)
			}
			defer rows.Close()
		}
		close(entered)
		<-late.letGo
		late.writeErr = e.Business.Insert(ctx, "late")
		return store.Settlement{Action: store.TxCommit, Completion: *answer("late")}
	}
	running.Go(func() {
		_, err := e.transact(request(target, lease(lateLease)), e.inserting(target.Key, hang))
		late.ended <- err
	})
	select {
	case <-entered:
	case err := <-late.ended:
		e.Fatalf("work that hangs did not begin: %v", err)
	case <-e.ctx.Done():
		e.Fatal("work that hangs did not begin")
	}
	return late
}

// awaitFree waits until a key is not in flight any more.
func (e *env) awaitFree(target store.ID) {
	e.Helper()
	store := e.Store.(store.Transactor)
	for end := time.Now().Add(patience / 2); store.InFlight(target); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			e.Fatalf("E8: work with a lease of %s still locks its key after %s", lateLease, patience/2)
		}
	}
}

// finish lets the work go, and checks that nothing comes of it.
func (late *lateWork) finish(e *env) {
	e.Helper()
	late.release()
	err := await(e, "the end of late work", late.ended)
	if late.writeErr == nil {
		e.Error("E1: work that is late could write")
	}
	undone := errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrOutcomeUnknown)
	if !undone || !errors.Is(err, store.ErrDeadline) {
		e.Errorf("E5: work that is late ended in %v, want ErrUnavailable and ErrDeadline: nothing was executed", err)
	}
}
