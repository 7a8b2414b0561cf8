package sqltx

import (
	"sync"

	"github.com/onceward/onceward/store"
)

// Flights holds the running transactions of a process, by the record that each of them will write. It detects
// duplicates within the process without a query to the server.
type Flights struct {
	mu      sync.Mutex
	running map[store.ID]*Flight
}

// Flight is one running transaction.
type Flight struct {
	ended chan struct{} // closed at its end; nil until a caller waits for it
}

// Enter adds a transaction. It returns nil if a transaction is already running for the same record.
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

// Leave removes a transaction that is over. A second call for the same transaction does nothing: a revoked transaction
// is over before its work returns, and the next transaction may be running by then.
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

// Has reports whether a transaction is running for a record.
func (f *Flights) Has(id store.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running[id] != nil
}

// Ended returns a channel that is closed when the transaction for a record ends, or nil if no transaction is running.
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
