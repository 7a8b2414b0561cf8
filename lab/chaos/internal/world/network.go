package world

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// network is the wires between clients, nodes, providers and the database. Each wire can be made slow, lossy or cut.
// They are our own because the library for it, toxiproxy, hangs for good if a fault is healed while a connection
// breaks.
type network struct{ wires []*wire }

func newNetwork() *network { return new(network) }

func (n *network) lay(name, to string) (*wire, error) {
	w := &wire{name: name, to: to, links: make(map[*link]bool)}
	if err := w.listen("127.0.0.1:0"); err != nil {
		return nil, err
	}
	w.address = w.listener.Addr().String()
	n.wires = append(n.wires, w)
	return w, nil
}

func (n *network) close() {
	for _, w := range n.wires {
		w.cut()
	}
}

// The directions of a wire.
const (
	toServer = iota
	fromServer
)

// trouble is a way in which a wire is bad in one direction.
type trouble struct {
	delay, jitter time.Duration // before each piece is passed on
	rate          int           // bytes a second
	bytes         int           // a connection is closed behind so many
	lose          bool          // nothing is passed on, and the connections are closed at the end
	reset         bool          // connections are reset, also new ones
	replicas      bool          // it is only about the connections of replicas
	over          chan struct{} // closed at the end
}

var (
	slow      = trouble{delay: 250 * time.Millisecond, jitter: 200 * time.Millisecond}
	losing    = trouble{lose: true}
	lagging   = trouble{lose: true, replicas: true}
	resetting = trouble{reset: true}
	cutShort  = trouble{bytes: 40}
	trickling = trouble{rate: 2 << 10}
)

// wire is a connection between two places: what connects to its address gets through to the other side.
type wire struct {
	name, to, address string

	mu       sync.Mutex
	listener net.Listener // nil while the wire is cut
	links    map[*link]bool
	troubles [2][]*trouble // by direction
}

func (w *wire) addr() string { return w.address }

// listen takes connections, from now on until the wire is cut.
func (w *wire) listen(address string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		return nil // another fault has mended it
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("wire to %s: %w", w.name, err)
	}
	w.listener = listener
	go w.accept(listener)
	return nil
}

func (w *wire) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go w.connect(listener, client)
	}
}

// connect joins a client to the other side, unless the wire was cut in the meantime.
func (w *wire) connect(listener net.Listener, client net.Conn) {
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		client.Close()
		return
	}
	l := &link{wire: w, ends: [2]net.Conn{client, server}, broken: make(chan struct{})}
	w.mu.Lock()
	joined := w.listener == listener
	if joined {
		w.links[l] = true
	}
	w.mu.Unlock()
	if !joined || w.resets() {
		l.close(joined)
		return
	}
	go l.pass(toServer, client, server)
	go l.pass(fromServer, server, client)
}

// current returns what is wrong with a direction now.
func (w *wire) current(direction int) []*trouble {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.troubles[direction])
}

func (w *wire) resets() bool {
	isReset := func(t *trouble) bool { return t.reset }
	return slices.ContainsFunc(w.current(toServer), isReset) || slices.ContainsFunc(w.current(fromServer), isReset)
}

// closeAll ends the connections that there are.
func (w *wire) closeAll(reset bool) {
	w.mu.Lock()
	links := make([]*link, 0, len(w.links))
	for l := range w.links {
		links = append(links, l)
	}
	w.mu.Unlock()
	for _, l := range links {
		l.close(reset)
	}
}

// suffer makes the wire bad in one direction for a while.
func (w *wire) suffer(ctx context.Context, how trouble, direction int, length time.Duration) {
	how.over = make(chan struct{})
	w.mu.Lock()
	w.troubles[direction] = append(w.troubles[direction], &how)
	w.mu.Unlock()
	if how.reset {
		w.closeAll(true)
	}
	pause(ctx, length)
	w.mu.Lock()
	w.troubles[direction] = slices.DeleteFunc(w.troubles[direction], func(t *trouble) bool { return t == &how })
	w.mu.Unlock()
	close(how.over)
	if how.lose {
		w.closeAll(false) // what was lost would be missing in the middle of a stream
	}
}

// snap cuts all connections over the wire at once; new ones are refused for a while.
func (w *wire) snap(ctx context.Context, length time.Duration) error {
	w.cut()
	pause(ctx, length)
	var err error
	for range 20 {
		if err = w.listen(w.address); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // another process may hold the port for a moment
	}
	return err
}

func (w *wire) cut() {
	w.mu.Lock()
	if w.listener != nil {
		w.listener.Close()
		w.listener = nil
	}
	w.mu.Unlock()
	w.closeAll(false)
}

// link is one connection over a wire.
type link struct {
	wire   *wire
	ends   [2]net.Conn
	once   sync.Once
	broken chan struct{}
	// replica is set when the client is a Redis server that follows the other side.
	replica atomic.Bool
	// lost is set, for each direction, when some of what was sent was lost.
	lost [2]atomic.Bool
}

// close ends both sides: by a reset, or in order.
func (l *link) close(reset bool) {
	l.once.Do(func() {
		close(l.broken)
		for _, end := range l.ends {
			if tcp, ok := end.(*net.TCPConn); ok && reset {
				_ = tcp.SetLinger(0) // it is closed in any case
			}
			end.Close()
		}
		l.wire.mu.Lock()
		defer l.wire.mu.Unlock()
		delete(l.wire.links, l)
	})
}

// pass copies one direction, with its troubles, until a side ends.
func (l *link) pass(direction int, from, to net.Conn) {
	defer l.close(false)
	passed := make(map[*trouble]int) // under each trouble that counts
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		rest := piece[:n]
		if direction == toServer && bytes.Contains(rest, []byte("REPLCONF")) {
			l.replica.Store(true)
		}
		for _, t := range l.wire.current(direction) {
			if t.replicas && !l.replica.Load() {
				continue
			}
			if rest = l.suffer(t, rest, passed); rest == nil {
				break
			}
		}
		if n > 0 && rest == nil {
			l.lost[direction].Store(true)
		} else if len(rest) > 0 {
			if l.lost[direction].Load() {
				return // nothing arrives behind a gap
			}
			if _, err := to.Write(rest); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
		for t, n := range passed {
			if t.bytes > 0 && n >= t.bytes {
				return
			}
		}
	}
}

// suffer does to a piece what a trouble does, and returns what is left of it.
func (l *link) suffer(t *trouble, piece []byte, passed map[*trouble]int) []byte {
	switch {
	case t.lose || t.reset:
		return nil
	case t.bytes > 0:
		piece = piece[:min(len(piece), t.bytes-passed[t])]
		passed[t] += len(piece)
	case t.rate > 0:
		l.wait(t, time.Duration(len(piece))*time.Second/time.Duration(t.rate))
	default:
		l.wait(t, t.delay-t.jitter+rand.N(2*t.jitter))
	}
	return piece
}

// wait holds a piece back, until the trouble is over at the latest.
func (l *link) wait(t *trouble, length time.Duration) {
	select {
	case <-time.After(length):
	case <-t.over:
	case <-l.broken:
	}
}

// pause waits, unless the run ends before.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}
