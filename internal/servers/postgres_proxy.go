package servers

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a proxy between clients and a PostgreSQL server that loses requests and answers on request. It reads the
// clients' messages, so that a test can choose the statement. A batch is everything that a client sends before it waits
// for the answer: one simple query, or messages up to a Sync. Connections must not be encrypted (sslmode=disable).
//
// The match functions get the SQL text as the client sent it, when it is executed. For a prepared
// statement, this is the text with which it was prepared. They are called for one statement at a
// time. A Proxy is safe for concurrent use, but its methods must not be called by a match function.
type Proxy struct {
	url      *url.URL
	target   atomic.Pointer[string]
	listener net.Listener
	// carry is run for each connection until it ends.
	carry   func(*link)
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	refuse     atomic.Bool
	attempts   atomic.Int64
	roundTrips atomic.Int64
	sprung     atomic.Int64
	recording  atomic.Pointer[recording]

	disguise disguise

	mu    sync.Mutex
	traps []*trap
	links map[*link]struct{}
}

// fate is what happens to a caught batch.
type fate int

const (
	cutRequest  fate = iota // it is not sent
	cutReply                // its answer is dropped
	holdReply               // its answer waits
	holdRequest             // it waits before it is sent
)

// trap waits until it has caught one batch.
type trap struct {
	fate  fate
	match func(sql string) bool
	// release is closed when the held request or answer may continue.
	release chan struct{}
}

// NewProxy starts a proxy in front of the server with this URL, and closes it at the end of the test.
func NewProxy(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	p, err := StartProxy(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	return p
}

// StartProxy starts a proxy in front of the server with this URL. The caller closes the proxy.
func StartProxy(serverURL string) (*Proxy, error) {
	return startProxy(serverURL, (*link).carryPostgres)
}

// startProxy starts a proxy whose connections are handled by carry.
func startProxy(serverURL string, carry func(*link)) (*Proxy, error) {
	parsed, target, err := parseTarget(serverURL)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{url: parsed, listener: listener, carry: carry, links: make(map[*link]struct{})}
	p.target.Store(&target)
	p.url.Host = p.Addr()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// parseTarget returns the host and the port in the URL of a server.
func parseTarget(serverURL string) (parsed *url.URL, target string, err error) {
	parsed, err = url.Parse(serverURL)
	switch {
	case err != nil:
		return nil, "", err
	case parsed.Hostname() == "":
		return nil, "", fmt.Errorf("servers: a proxy needs a URL with a host, not %q", serverURL)
	case strings.Contains(parsed.Host, ","):
		return nil, "", fmt.Errorf("servers: a proxy stands in front of one server, not %q", parsed.Host)
	case parsed.Port() == "" && parsed.Scheme == "redis":
		return parsed, net.JoinHostPort(parsed.Hostname(), "6379"), nil
	case parsed.Port() == "" && parsed.Scheme == "mysql":
		return parsed, net.JoinHostPort(parsed.Hostname(), "3306"), nil
	case parsed.Port() == "":
		return parsed, net.JoinHostPort(parsed.Hostname(), "5432"), nil
	default:
		return parsed, parsed.Host, nil
	}
}

// Retarget makes new connections lead to another server, as an address does
// that moves in a fail-over. Existing connections are unchanged: see DropAll.
func (p *Proxy) Retarget(serverURL string) error {
	_, target, err := parseTarget(serverURL)
	if err != nil {
		return err
	}
	p.target.Store(&target)
	return nil
}

// Addr returns the host and the port for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL returns the server's URL with the address of the proxy.
func (p *Proxy) URL() string { return p.url.String() }

// CutRequest loses one batch on its way to the server: the next batch that executes a matching statement
// is not sent, so that its work is certainly not done. The connections on both sides are closed.
func (p *Proxy) CutRequest(match func(sql string) bool) { p.arm(&trap{fate: cutRequest, match: match}) }

// CutReply loses the answer to one batch: the next batch that executes a matching
// statement is sent. When the server has reported that it is ready, so that the work
// is certainly done, the client's connection is reset without a byte of the answer.
func (p *Proxy) CutReply(match func(sql string) bool) { p.arm(&trap{fate: cutReply, match: match}) }

// HoldReply lets the server execute the next batch with a matching statement, and holds the answer until release
// is called, once or more often. Only that connection waits. AwaitSprung waits until the server is ready.
func (p *Proxy) HoldReply(match func(sql string) bool) (release func()) {
	t := &trap{fate: holdReply, match: match, release: make(chan struct{})}
	p.arm(t)
	return sync.OnceFunc(func() { close(t.release) })
}

// HoldRequest holds the next batch with a matching statement until release is called, once or more
// often. AwaitSprung waits until it is held. The batch is lost if its connection is reset before that.
func (p *Proxy) HoldRequest(match func(sql string) bool) (release func()) {
	t := &trap{fate: holdRequest, match: match, release: make(chan struct{})}
	p.arm(t)
	return sync.OnceFunc(func() { close(t.release) })
}

// Lose loses the next batch with a matching statement, or the reply to it. The function lost waits until
// the proxy holds it, and then resets all connections and refuses new ones until restore is called.
func (p *Proxy) Lose(match func(sql string) bool, reply bool) (lost func(ctx context.Context) error, restore func()) {
	hold, sprung := p.HoldRequest, p.Sprung()
	if reply {
		hold = p.HoldReply
	}
	release := hold(match)
	lost = func(ctx context.Context) error {
		if err := p.AwaitSprung(ctx, sprung+1); err != nil {
			return err
		}
		p.Refuse(true)
		p.DropAll()
		return nil
	}
	restore = func() {
		p.Refuse(false)
		release()
	}
	return lost, restore
}

// held waits until a held request may be sent. It returns an error if the connection ends before that.
func (l *link) held(caught *trap) error {
	l.proxy.sprung.Add(1)
	select {
	case <-l.closed:
		return net.ErrClosed
	case <-caught.release:
		return nil
	}
}

func (p *Proxy) arm(t *trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
}

// Disarm removes the traps that have not caught a batch.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = nil
}

// catch removes and returns the first trap that matches the statement; nil if there is none.
func (p *Proxy) catch(sql string) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.traps {
		if t.match(sql) {
			p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
			return t
		}
	}
	return nil
}

// Sprung returns the number of requests that were cut or held, and of answers that were cut or held when complete.
func (p *Proxy) Sprung() int { return int(p.sprung.Load()) }

// AwaitSprung waits until Sprung is at least n.
func (p *Proxy) AwaitSprung(ctx context.Context, n int) error {
	for p.Sprung() < n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("servers: the proxy has cut or held %d of %d: %w", p.Sprung(), n, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// RoundTrips returns the number of batches that all clients have sent since the start
// of the proxy, including cut batches. The start of a connection is not a batch.
func (p *Proxy) RoundTrips() int { return int(p.roundTrips.Load()) }

// Connections returns the number of connections that clients have tried
// to make since the start of the proxy, including refused connections.
func (p *Proxy) Connections() int { return int(p.attempts.Load()) }

// Refuse makes the proxy close new connections at once while it is set. Existing connections are unchanged.
func (p *Proxy) Refuse(refuse bool) { p.refuse.Store(refuse) }

// DropAll resets all existing connections.
func (p *Proxy) DropAll() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.close(net.ErrClosed)
	}
}

// Close stops listening, resets all connections, and returns when no goroutine of the proxy is running.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.listener.Close()
	p.DropAll()
	p.running.Wait()
	return err
}

// accept accepts connections until the proxy is closed.
func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.attempts.Add(1)
		client := conn.(*net.TCPConn)
		if p.refuse.Load() {
			reset(client)
			continue
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve connects a client with the server, until one of them or the test ends the connection.
func (p *Proxy) serve(client *net.TCPConn) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	server, err := dialer.DialContext(p.ctx, "tcp", *p.target.Load())
	if err != nil {
		reset(client)
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		l.close(net.ErrClosed) // the proxy was closed before it knew of this connection
	}
	p.carry(l)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
