package sqltx

import (
	"sync"
	"sync/atomic"
	"time"
)

// Work that does not return would keep its key locked permanently. When its time is over, its transaction is revoked:
// the transaction is undone and its lock is released, so that the key is free. The work continues without the
// transaction; what it tries or returns afterwards has no effect.

const (
	// LateGrace is how long work may take to notice its deadline before its transaction is revoked.
	LateGrace = 250 * time.Millisecond
	// QuietWait is how long a statement may take to notice that its connection was cut.
	QuietWait = time.Second
)

// Revocable is a transaction that can be undone while its work is running.
type Revocable interface{ Revoke() }

// Limit bounds how long the work of a transaction takes. The transaction is ended by the return of the work or by the
// timer, whichever is first.
type Limit struct {
	work     Revocable
	timer    *time.Timer
	running  bool // a timer was started, and it was not stopped before it fired
	claimed  atomic.Bool
	revoking sync.WaitGroup
}

// Start starts the timer of the work. The transaction is revoked if the work has not returned after limit and
// LateGrace. A limit of zero means no limit.
func (l *Limit) Start(limit time.Duration, work Revocable) {
	if limit <= 0 {
		return
	}
	l.revoking.Add(1)
	l.work, l.running = work, true
	l.timer = time.AfterFunc(limit+LateGrace, l.expire)
}

// expire revokes the transaction, unless the work has just returned.
func (l *Limit) expire() {
	if l.claimed.CompareAndSwap(false, true) {
		defer l.revoking.Done()
		l.work.Revoke()
	}
}

// Returned records that the work has returned, and reports whether it returned in time. If the transaction is being
// revoked, Returned waits until that is done.
func (l *Limit) Returned() (inTime bool) {
	if l.running && l.timer.Stop() {
		l.running = false
	}
	if !l.running || l.claimed.CompareAndSwap(false, true) {
		return true
	}
	l.revoking.Wait()
	return false
}

// Running reports whether a timer that was started may still use the limit.
func (l *Limit) Running() bool { return l.running }
