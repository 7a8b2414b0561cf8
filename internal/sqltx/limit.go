package sqltx

import (
	"sync"
	"sync/atomic"
	"time"
)

// Work that does not return would keep its key locked permanently. When its time is over its transaction is revoked:
// undone, its lock released, and its key free. The work continues without it, and whatever the work tries or returns
// has no effect.

const (
	// LateGrace is how long work may take to notice its deadline before its transaction is revoked.
	LateGrace = 250 * time.Millisecond
	// QuietWait is how long a statement may take to notice that its connection was cut.
	QuietWait = time.Second
)

// Revocable is a transaction that can be undone under the hands of its work.
type Revocable interface{ Revoke() }

// Limit bounds how long the work of a transaction takes. The end of the work and the timer compete: the first of them
// ends the transaction.
type Limit struct {
	work     Revocable
	timer    *time.Timer
	running  bool // a timer was started, and it was not stopped before it went off
	claimed  atomic.Bool
	revoking sync.WaitGroup
}

// Start begins the time of the work: its transaction is revoked if the work has not returned when the time and LateGrace
// are over. A limit of zero is none.
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

// Returned notes that the work has returned. If the transaction is being revoked, it waits until that is done and
// reports false.
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
