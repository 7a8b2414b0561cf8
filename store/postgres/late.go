package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/store"
)

// Work that does not return would keep its key locked for ever. When its time is over the transaction is taken back
// from it: undone, its lock let go, and its key free again. The work goes on without it, and whatever it tries or
// returns comes to nothing.

const (
	// lateGrace is how long work may take to external event its deadline before its transaction is taken back.
	lateGrace = 250 * time.Millisecond
	// quietWait is how long a statement may take to external event that its connection was cut.
	quietWait = time.Second
)

// errLate is what late work sees, and what becomes of it.
var errLate = fmt.Errorf("%w: the transaction was taken back, because the handler did not return in time",
	store.ErrDeadline)

// watch takes the transaction back if the work has not returned after so long.
func (t *transaction) watch(longest time.Duration) {
	t.taking.Add(1)
	t.timer = time.AfterFunc(longest+lateGrace, t.takeBack)
}

// inTime notes that the work has returned. If the transaction was taken back before, it waits until that is done and
// reports false.
func (t *transaction) inTime() bool {
	if t.timer == nil {
		return true
	}
	t.timer.Stop()
	if t.claimed.CompareAndSwap(false, true) {
		return true
	}
	t.taking.Wait()
	return false
}

// takeBack ends the transaction of work that is late, unless that has just returned.
func (t *transaction) takeBack() {
	if !t.claimed.CompareAndSwap(false, true) {
		return
	}
	defer t.taking.Done()
	quiet := false
	quiet, t.late = t.undoLate()
	t.store.leave(t.reservation.ID, t.flight)
	t.store.waits.settled(t.hash)
	if t.gate.raw.Load() || t.gate.objects.Load() {
		return // the work can use it past the gate: it goes back when the work returns
	}
	if !quiet {
		t.gate.close() // which waits as long as the call under way takes, that may be in the work's own code
	}
	t.close() // it is not lent again: late work may know it
	t.lent.giveBack()
	t.given = true
}

// undoLate ends the transaction, and returns what that came to. It reports whether the work is done with the
// connection.
func (t *transaction) undoLate() (quiet bool, err error) {
	t.gate.lock()
	switch {
	case t.gate.raw.Load():
		err := t.recordUnknown("the handler did not return, and had taken the connection itself")
		t.cut()
		return false, err
	case t.gate.seize():
		_, err := t.settle(store.Verdict{}, store.Settlement{Action: store.TxRollback})
		if errors.Is(err, store.ErrOutcomeUnknown) {
			return true, err
		}
		return true, unavailable(errLate)
	default:
		t.cut()
		return t.endCut()
	}
}

// cut ends the connection under the work's hands. The server is told to give up what it is busy with: it would go on
// to its end.
func (t *transaction) cut() {
	pg := t.conn.PgConn()
	_ = pg.Conn().Close() // it is given up whether or not the server hears of it
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_ = pg.CancelRequest(ctx)
}

// endCut waits until a transaction whose connection was cut is over.
func (t *transaction) endCut() (quiet bool, err error) {
	quiet = t.gate.seizeWithin(quietWait)
	if t.gate.ended.Load() || t.gate.ending.Load() || t.gate.raw.Load() {
		return quiet, t.recordUnknown("the handler ended the transaction that is not its to end, or may have, and did not return")
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	_, _ = t.ask(ctx) // which waits for the lock; in vain, the next one who wants it is told to come again
	return quiet, unavailable(errLate)
}

// giveBack returns the connection, unless that was done when the transaction was taken back.
func (t *transaction) giveBack() {
	if t.given {
		return
	}
	if t.late != nil {
		t.gate.close() // it stayed open for what the work holds
		t.close()
	}
	t.lent.giveBack()
}
