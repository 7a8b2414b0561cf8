package servers

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// NewMySQLProxy starts a proxy in front of the MariaDB or MySQL server with this URL, and closes it at the end of the
// test. It works like Proxy for PostgreSQL, with commands instead of batches: a query, a statement to prepare or its
// execution. Connections must be neither encrypted nor compressed: the proxy hides these capabilities of the server.
func NewMySQLProxy(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	p, err := StartMySQLProxy(serverURL)
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

// StartMySQLProxy starts a proxy like NewMySQLProxy. The functions change the text of each statement for the
// server, for example to simulate a wrong clock; traps see the client's text. The caller closes the proxy.
func StartMySQLProxy(serverURL string, changes ...func(sql string) string) (*Proxy, error) {
	return startProxy(serverURL, func(l *link) { l.carryMySQL(changes) })
}

// mysqlLink is a connection on which the proxy distinguishes commands and replies. A client
// waits for the reply before it sends the next command, so that at most one reply is awaited.
type mysqlLink struct {
	*link
	changes []func(sql string) string

	mu sync.Mutex
	// reply is the awaited reply, nil between commands; sql and caught belong to it.
	reply  *mysqlReply
	sql    string
	caught *trap
	// prepared are the texts of the prepared statements, by the IDs that the server gave them.
	prepared map[uint32]string
}

// carryMySQL carries packets in both directions until one side ends.
func (l *link) carryMySQL(changes []func(sql string) string) {
	m := &mysqlLink{link: l, changes: changes, prepared: make(map[uint32]string)}
	out, in := bufio.NewReader(l.server), bufio.NewReader(l.client)
	if err := m.greet(out, in); err != nil {
		l.close(err)
		return
	}
	var replies sync.WaitGroup
	replies.Go(func() { l.close(m.carryReplies(out)) })
	l.close(m.carryCommands(in))
	replies.Wait()
}

// greet carries packets until the server has admitted the client: each side waits for the other.
func (m *mysqlLink) greet(out, in *bufio.Reader) error {
	greeting, err := readMySQLPacket(out)
	if err != nil {
		return err
	}
	plainGreeting(greeting)
	if _, err := m.client.Write(greeting); err != nil {
		return err
	}
	for {
		answer, err := readMySQLPacket(in)
		if err != nil {
			return err
		}
		if _, err := m.server.Write(answer); err != nil {
			return err
		}
		reply, err := readMySQLPacket(out)
		if err != nil {
			return err
		}
		if _, err := m.client.Write(reply); err != nil {
			return err
		}
		switch reply.kind() {
		case mysqlOK:
			return nil
		case mysqlError:
			return io.EOF
		}
	}
}

// carryCommands passes on the client's commands.
func (m *mysqlLink) carryCommands(in *bufio.Reader) error {
	for {
		packet, err := readMySQLPacket(in)
		if err != nil {
			return err
		}
		if err := m.expect(packet); err != nil {
			return err
		}
		if _, err := m.server.Write(m.changed(packet)); err != nil {
			return err
		}
	}
}

// changed returns a packet with the changed text of its statement. A statement in several packets stays unchanged.
func (m *mysqlLink) changed(packet mysqlPacket) mysqlPacket {
	kind := packet.kind()
	if len(m.changes) == 0 || kind != mysqlQuery && kind != mysqlPrepare || len(packet) > mysqlWhole/2 {
		return packet
	}
	sql := string(packet.body()[1:])
	for _, change := range m.changes {
		sql = change(sql)
	}
	size := 1 + len(sql)
	head := mysqlPacket{byte(size), byte(size >> 8), byte(size >> 16), packet[3], kind}
	return append(head, sql...)
}

// expect records which reply the server will send, before it can. It returns an error if the command is lost.
func (m *mysqlLink) expect(packet mysqlPacket) error {
	kind := packet.kind()
	if kind == mysqlQuit || kind == mysqlLongData || kind == mysqlClose {
		return nil // they have no reply
	}
	m.proxy.roundTrips.Add(1)
	sql := ""
	var caught *trap
	switch body := packet.body(); kind {
	case mysqlQuery:
		sql = string(body[1:])
		caught = m.proxy.catch(sql)
	case mysqlPrepare:
		sql = string(body[1:])
	case mysqlExecute:
		m.mu.Lock()
		sql = m.prepared[statementID(body)]
		m.mu.Unlock()
		caught = m.proxy.catch(sql)
	}
	switch {
	case caught == nil:
	case caught.fate == cutRequest:
		m.proxy.sprung.Add(1)
		return net.ErrClosed
	case caught.fate == holdRequest:
		if err := m.held(caught); err != nil {
			return err
		}
		caught = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reply, m.sql, m.caught = &mysqlReply{command: kind}, sql, caught
	return nil
}

// statementID returns the ID of a statement in a packet about it.
func statementID(body []byte) uint32 {
	if len(body) < 5 {
		return 0
	}
	return binary.LittleEndian.Uint32(body[1:])
}

// carryReplies passes on the server's packets. The reply to a caught command is held until it is complete.
func (m *mysqlLink) carryReplies(in *bufio.Reader) error {
	out := bufio.NewWriterSize(m.client, 32<<10)
	var kept []byte
	for {
		packet, err := readMySQLPacket(in)
		if err != nil {
			return errors.Join(err, out.Flush()) // the last packets of a server that ends are worth reading
		}
		caught, done := m.note(packet)
		if caught == nil {
			_, _ = out.Write(packet) // Flush returns the error
		} else {
			kept = append(kept, packet...)
		}
		if caught != nil && done {
			if err := m.decide(caught); err != nil {
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

// note processes a packet of the server. It returns the trap that
// has caught the command, and whether the reply is complete.
func (m *mysqlLink) note(packet mysqlPacket) (caught *trap, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reply == nil {
		return nil, true // the server ends the connection unasked
	}
	if m.reply.command == mysqlPrepare && m.reply.ends == 0 && packet.kind() == mysqlOK {
		m.prepared[statementID(packet.body())] = m.sql
	}
	caught, done = m.caught, m.reply.add(packet)
	if done {
		m.reply = nil
	}
	return caught, done
}
