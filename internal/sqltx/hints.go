package sqltx

import "sync"

// Hints wakes the workers of an outbox that watch for messages which this process made ready.
type Hints struct {
	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

// Wake sends a hint to each watcher. A watcher that has not yet received its last hint gets no second one.
func (h *Hints) Wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for watcher := range h.watchers {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// Watch returns a channel of hints, and a function that ends the watch.
func (h *Hints) Watch() (hints <-chan struct{}, stop func()) {
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
