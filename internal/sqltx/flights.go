package sqltx

import (
	"sync"

	"github.com/onceward/onceward/store"
)

// Flights are the transactions of a process that are under way, by the record that each will write. Duplicates within
// the process are seen here without a question to the server.
type Flights struct {
	mu      sync.Mutex
	running map[store.ID]*Flight
}

// Flight is one transaction that is under way.
type Flight struct {
	ended chan struct{} // closed at its end; nil until a caller waits for it
}

// Enter notes a transaction. It returns nil if one is under way for the same record.
func (f *Flights) Enter(id store.ID) *Flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[id] != nil {
		return nil
	}
	if f.running == nil {
		f.running = make(map[store.ID]*Flight)
	}
	one := new(Flight)
	f.running[id] = one
	return one
}

// Leave notes that a transaction is over, once: one that was revoked is over before its work returns, and the next one
// may be under way by then.
func (f *Flights) Leave(id store.ID, one *Flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[id] != one {
		return
	}
	delete(f.running, id)
	if one.ended != nil {
		close(one.ended)
	}
}

// Has reports whether a transaction is under way for a record.
func (f *Flights) Has(id store.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[id] != nil
}

// Ended returns a channel that is closed at the end of the transaction for a record, or nil if none is under way.
func (f *Flights) Ended(id store.ID) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.running[id]
	if one == nil {
		return nil
	}
	if one.ended == nil {
		one.ended = make(chan struct{})
	}
	return one.ended
}
