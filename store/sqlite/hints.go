package sqlite

import (
	"sync"
	"sync/atomic"
)

// hints tells watchers of messages that this process made ready. What other processes add is found by polling.
type hints struct {
	ready atomic.Bool // whether there is something to tell of after the next commit

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

// add notes that so many messages became ready in the transaction that is under way.
func (h *hints) add(n int) {
	if n > 0 {
		h.ready.Store(true)
	}
}

// tell is called after each commit. A watcher that has not yet looked at its last hint needs no other.
func (h *hints) tell() {
	if !h.ready.Swap(false) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for watcher := range h.watchers {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// WatchMessages implements [outbox.Store].
func (s *Store) WatchMessages() (told <-chan struct{}, stop func()) {
	h := &s.writer.messages
	watcher := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers == nil {
		h.watchers = make(map[chan struct{}]struct{})
	}
	h.watchers[watcher] = struct{}{}
	return watcher, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, watcher)
	}
}

// HearsMessages implements [outbox.Store]: SQLite has no way to tell other processes.
func (s *Store) HearsMessages() bool { return false }
