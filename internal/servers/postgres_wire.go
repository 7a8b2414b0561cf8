package servers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// These are the messages of PostgreSQL's protocol that the proxy
// uses. Some letters have another meaning in each direction.
const (
	msgQuery   = 'Q'
	msgParse   = 'P'
	msgBind    = 'B'
	msgDescr   = 'D'
	msgExecute = 'E'
	msgClose   = 'C'
	msgSync    = 'S'
	msgCall    = 'F'

	msgReady  = 'Z'
	msgCopyIn = 'G'
	msgNotify = 'A'
)

// These are the codes of start-up packets that do not ask for a session.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// mostMessage is the largest message. It detects streams that are not PostgreSQL's.
const mostMessage = 1 << 30

// message is one message with its type and length, as it was read.
type message []byte

func (m message) kind() byte   { return m[0] }
func (m message) body() []byte { return m[5:] }

// readMessage reads one message of a running session.
func readMessage(r *bufio.Reader) (message, error) {
	head, err := r.Peek(5)
	if err != nil {
		return nil, err
	}
	return readExactly(r, 1+int64(binary.BigEndian.Uint32(head[1:])))
}

// readStartup reads the first packet of a client, which has no type, and its code.
func readStartup(r *bufio.Reader) (packet []byte, code uint32, err error) {
	head, err := r.Peek(8)
	if err != nil {
		return nil, 0, err
	}
	code = binary.BigEndian.Uint32(head[4:])
	packet, err = readExactly(r, int64(binary.BigEndian.Uint32(head)))
	return packet, code, err
}

func readExactly(r io.Reader, size int64) ([]byte, error) {
	if size < 5 || size > mostMessage {
		return nil, fmt.Errorf("servers: a message of %d bytes", size)
	}
	packet := make([]byte, size)
	_, err := io.ReadFull(r, packet)
	return packet, err
}

// cutText cuts a text with a terminating zero byte from the front.
func cutText(body []byte) (text string, rest []byte) {
	before, after, _ := bytes.Cut(body, []byte{0})
	return string(before), after
}

// statements tracks the SQL text of each prepared statement and
// each portal of a connection. Unnamed ones have an empty name.
type statements struct{ prepared, portals map[string]string }

func newStatements() statements {
	return statements{prepared: make(map[string]string), portals: make(map[string]string)}
}

// executes processes a message of the client, and returns the SQL text that it executes, if any.
func (s statements) executes(m message) (sql string, ok bool) {
	first, rest := "", []byte(nil)
	if m.kind() != msgClose {
		first, rest = cutText(m.body())
	}
	switch m.kind() {
	case msgQuery:
		return first, true
	case msgParse:
		s.prepared[first], _ = cutText(rest)
	case msgBind:
		name, _ := cutText(rest)
		s.portals[first] = s.prepared[name]
	case msgExecute:
		sql, ok = s.portals[first]
		return sql, ok
	case msgClose:
		s.forget(m.body())
	}
	return "", false
}

// forget processes a message that closes a statement or a portal. Its first byte is the kind.
func (s statements) forget(body []byte) {
	if len(body) == 0 {
		return
	}
	name, _ := cutText(body[1:])
	if body[0] == 'S' {
		delete(s.prepared, name)
	} else {
		delete(s.portals, name)
	}
}
