package servers

import "sync"

// Traffic is the messages between clients and the server through a proxy. It
// excludes the start of a connection, and notifications, which arrive at any time.
type Traffic struct {
	// RoundTrips is the number of batches that the clients sent, Statements the number of statements executed.
	RoundTrips, Statements int
	// Sent and Received are the types of the messages in order, one letter of the
	// protocol for each. Some letters have another meaning in each direction.
	Sent, Received string
}

// recording is traffic that is being recorded.
type recording struct {
	mu             sync.Mutex
	trips          int
	statements     int
	sent, received []byte
}

// Record returns the traffic through the proxy during a call. Messages of concurrent connections are mixed.
func (p *Proxy) Record(call func()) Traffic {
	r := new(recording)
	p.recording.Store(r)
	call()
	p.recording.Store(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	return Traffic{RoundTrips: r.trips, Statements: r.statements, Sent: string(r.sent), Received: string(r.received)}
}

// recordSent records a message of a client, which may execute a statement.
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

// recordReceived records a message of the server.
func (p *Proxy) recordReceived(kind byte) {
	r := p.recording.Load()
	if r == nil || kind == msgNotify {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received = append(r.received, kind)
}
