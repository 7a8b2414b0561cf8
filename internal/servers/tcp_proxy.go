package servers

import (
	"io"
	"sync"
)

// TCPProxy is a proxy for any protocol between servers. It can separate them on request.
type TCPProxy struct {
	*Proxy
	mu sync.Mutex
	// open is closed while bytes pass.
	open    chan struct{}
	blocked bool
}

// StartTCPProxy starts a proxy in front of the address. The caller closes the proxy.
func StartTCPProxy(address string) (p *TCPProxy, err error) {
	p = &TCPProxy{open: make(chan struct{})}
	close(p.open)
	p.Proxy, err = startProxy("tcp://"+address, p.carry)
	return p, err
}

// Block holds all bytes until it is called with false, on new connections too, as in
// a divided network: neither side gets an error. Held bytes are delivered afterwards.
func (p *TCPProxy) Block(block bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case block && !p.blocked:
		p.open = make(chan struct{})
	case !block && p.blocked:
		close(p.open)
	}
	p.blocked = block
}

func (p *TCPProxy) passes() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// carry carries bytes in both directions until one side ends.
func (p *TCPProxy) carry(l *link) {
	var replies sync.WaitGroup
	replies.Go(func() { l.close(p.copy(l, l.client, l.server)) })
	l.close(p.copy(l, l.server, l.client))
	replies.Wait()
}

// copy carries one direction.
func (p *TCPProxy) copy(l *link, to io.Writer, from io.Reader) error {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		select {
		case <-p.passes():
		case <-l.closed:
			return io.EOF
		}
		if _, failed := to.Write(piece[:n]); failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
	}
}
