package servers

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
)

// link is a client's connection, with its connection to the server.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server net.Conn
	// closed is closed with the connections, once.
	closed  chan struct{}
	closing sync.Once

	mu sync.Mutex
	// caught contains the traps of the batches that were sent, by the number of the batch. The first batch is number 1.
	caught map[int]*trap
}

func newLink(p *Proxy, client *net.TCPConn, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, closed: make(chan struct{}), caught: make(map[int]*trap)}
}

// close ends both connections. The client sees the end of the stream if a side has ended it, and otherwise a reset.
func (l *link) close(cause error) {
	l.closing.Do(func() {
		close(l.closed)
		if errors.Is(cause, io.EOF) {
			_ = l.client.Close() // both sides are done with it
		} else {
			reset(l.client)
		}
		_ = l.server.Close() // the same
	})
}

// reset closes a connection so that the other side sees an error,
// not the end of the stream. Data that has not arrived is lost.
func reset(conn *net.TCPConn) {
	// Both calls fail only on a closed connection, which is the goal anyway.
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// carryPostgres carries messages in both directions until one side ends.
func (l *link) carryPostgres() {
	in := bufio.NewReader(l.client)
	session, err := l.startup(in)
	switch {
	case err != nil:
		l.close(err)
	case !session:
		_, _ = io.Copy(l.client, l.server) // the server closes without an answer
		l.close(io.EOF)
	default:
		var replies sync.WaitGroup
		replies.Go(func() { l.close(l.carryReplies()) })
		l.close(l.carryRequests(in))
		replies.Wait()
	}
}

// startup passes on the first packet. It refuses encryption, after which the client asks again. It
// reports whether a session follows: a request to cancel a statement uses a separate connection.
func (l *link) startup(in *bufio.Reader) (session bool, err error) {
	for {
		packet, code, err := readStartup(in)
		if err != nil {
			return false, err
		}
		if code != codeSSL && code != codeGSS {
			_, err = l.server.Write(l.proxy.disguise.rewrite(packet, 0))
			return code != codeCancel, err
		}
		if _, err := l.client.Write([]byte{'N'}); err != nil {
			return false, err
		}
	}
}

// carryRequests passes on the client's messages, one batch at a time, so that a batch can be lost as a whole.
func (l *link) carryRequests(in *bufio.Reader) error {
	known := newStatements()
	var pending []byte // of the current batch
	var sprung *trap   // the trap that has caught it
	ended := 0         // how many batches were read
	for {
		m, err := readMessage(in)
		if err != nil {
			return err
		}
		m = l.proxy.disguise.statement(m)
		if answer := l.proxy.disguise.refuses(m); answer != nil {
			if _, err := l.client.Write(answer); err != nil {
				return err
			}
			continue
		}
		pending = append(pending, m...)
		sql, executes := known.executes(m)
		if executes && sprung == nil {
			sprung = l.proxy.catch(sql)
		}
		l.proxy.recordSent(m.kind(), executes)
		if !sendsNow(m.kind()) {
			continue
		}
		if endsBatch(m.kind()) {
			l.proxy.roundTrips.Add(1)
		}
		if err := l.forward(pending, sprung, ended+1); err != nil {
			return err
		}
		pending = pending[:0]
		if endsBatch(m.kind()) {
			ended, sprung = ended+1, nil
		}
	}
}

// sendsNow reports whether a message of the client is passed on, with everything before it.
// Other messages only add to a batch, and the client expects no answer before it sends more.
func sendsNow(kind byte) bool {
	return !strings.ContainsRune(string([]byte{msgParse, msgBind, msgDescr, msgExecute, msgClose}), rune(kind))
}

// endsBatch reports whether the server answers a message with ReadyForQuery.
func endsBatch(kind byte) bool { return kind == msgSync || kind == msgQuery || kind == msgCall }

// forward sends a batch, unless it is to be lost. It registers the trap before the server can answer.
func (l *link) forward(pending []byte, sprung *trap, batch int) error {
	if sprung != nil && sprung.fate == cutRequest {
		l.proxy.sprung.Add(1)
		return net.ErrClosed
	}
	if sprung != nil && sprung.fate == holdRequest {
		if err := l.held(sprung); err != nil {
			return err
		}
		sprung = nil
	}
	if sprung != nil {
		l.mu.Lock()
		l.caught[batch] = sprung
		l.mu.Unlock()
	}
	_, err := l.server.Write(pending)
	return err
}

// carryReplies passes on the server's messages. The server reports that it is ready once at the start
// of the session, before batch 1, and once after each batch, which shows the batch of each message.
func (l *link) carryReplies() error {
	in := bufio.NewReaderSize(l.server, 32<<10)
	out := bufio.NewWriterSize(l.client, 32<<10)
	var kept []byte // the answer to a caught batch
	ready := 0
	for {
		m, err := readMessage(in)
		if err != nil {
			_ = out.Flush() // the last messages of a server that ends are worth reading
			return err
		}
		if ready > 0 {
			l.proxy.recordReceived(m.kind())
		}
		caught := l.trapOf(ready)
		// In a batch that copies data in, the server waits for the
		// client's data, so that the request for them is passed on.
		if caught == nil || m.kind() == msgCopyIn {
			_, _ = out.Write(m) // Flush returns the error
		} else {
			kept = append(kept, m...)
		}
		if m.kind() == msgReady {
			ready++
			if err := l.decide(caught); err != nil {
				return err
			}
			_, _ = out.Write(kept)
			kept = nil
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

func (l *link) trapOf(batch int) *trap {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.caught[batch]
}

// decide is called when the server has finished a batch. It returns nil
// when the answer may go to the client, and an error if it must not.
func (l *link) decide(caught *trap) error {
	if caught == nil {
		return nil
	}
	l.proxy.sprung.Add(1)
	if caught.fate == cutReply {
		return net.ErrClosed
	}
	select {
	case <-caught.release:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}
