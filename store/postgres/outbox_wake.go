package postgres

import (
	"sync"
	"sync/atomic"
	"time"
)

// notifyPause is the shortest time between two messages that notify. Notifications make commits wait for each other, so not
// every message does: a worker that was woken looks again and again for longer than this before it sleeps.
const notifyPause = 50 * time.Millisecond

// announcer says that there may be new messages: to other processes not too often, in this one to all who watch.
type announcer struct {
	last atomic.Int64

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

// due reports whether it is time to notify, and notes that it is done.
func (a *announcer) due(now time.Time) bool {
	last := a.last.Load()
	return now.UnixNano()-last >= int64(notifyPause) && a.last.CompareAndSwap(last, now.UnixNano())
}

// wake tells those who watch in this process.
func (a *announcer) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for hints := range a.watchers {
		select {
		case hints <- struct{}{}:
		default: // it has been told and has not looked yet
		}
	}
}

// WatchMessages implements [outbox.Store].
func (s *Store) WatchMessages() (<-chan struct{}, func()) {
	a := &s.messages
	hints := make(chan struct{}, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watchers == nil {
		a.watchers = make(map[chan struct{}]struct{})
	}
	a.watchers[hints] = struct{}{}
	return hints, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watchers, hints)
	}
}

// HearsMessages implements [outbox.Store]: notifications arrive while the listener is connected.
func (s *Store) HearsMessages() bool { return s.waits.listen.healthy() }
