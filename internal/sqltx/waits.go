package sqltx

import (
	"sync"

	"github.com/onceward/onceward/store"
)

// Waits wakes the callers that wait for a record when this process settles the record. It keeps a record as long
// as a caller waits for it.
type Waits struct {
	mu    sync.Mutex
	waits map[store.ID]*Wait
}

// Wait is shared by the callers that wait for one record.
type Wait struct {
	// Settled is closed when the record is settled.
	Settled chan struct{}
	waiting int
}

// Watch begins a wait, which the caller ends with Leave.
func (w *Waits) Watch(id store.ID) *Wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits == nil {
		w.waits = make(map[store.ID]*Wait)
	}
	one := w.waits[id]
	if one == nil {
		one = &Wait{Settled: make(chan struct{})}
		w.waits[id] = one
	}
	one.waiting++
	return one
}

// Leave ends a wait. The last caller to leave removes the record.
func (w *Waits) Leave(id store.ID, one *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.waiting--
	if one.waiting == 0 && w.waits[id] == one {
		delete(w.waits, id)
	}
}

// Wake ends the waits for a record.
func (w *Waits) Wake(id store.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.waits[id]; one != nil {
		close(one.Settled)
		delete(w.waits, id)
	}
}

// Len returns the number of records that callers wait for.
func (w *Waits) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waits)
}
