package servers

import "sync"

// Traffic is what clients and the server said to each other through a proxy. The start of a connection does not count,
// nor does a notification, which comes at a time of its own.
type Traffic struct {
	// RoundTrips is how many batches the clients sent, Statements how many statements they had executed.
	RoundTrips, Statements int
	// Sent and Received are the types of the messages, in their order: a letter each, as the protocol has them. Some
	// letters mean something else in each direction.
	Sent, Received string
}

// recording is traffic that is being recorded.
type recording struct {
	mu             sync.Mutex
	trips          int
	statements     int
	sent, received []byte
}

// Record returns what passes through the proxy during a call. What several connections say at the same time is mixed.
func (p *Proxy) Record(call func()) Traffic {
	r := new(recording)
	p.recording.Store(r)
	call()
	p.recording.Store(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	return Traffic{RoundTrips: r.trips, Statements: r.statements, Sent: string(r.sent), Received: string(r.received)}
}

// recordSent notes a message of a client, which may execute a statement.
func (p *Proxy) recordSent(kind byte, executes bool) {
	r := p.recording.Load()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, kind)
	if executes {
		r.statements++
	}
	if endsBatch(kind) {
		r.trips++
	}
}

// recordReceived notes a message of the server.
func (p *Proxy) recordReceived(kind byte) {
	r := p.recording.Load()
	if r == nil || kind == msgNotify {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received = append(r.received, kind)
}
