package servers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
)

// This file makes a proxy stand for a server that behaves otherwise than the one behind it: it reads the texts of
// statements differently, or refuses some.

// disguise is what a proxy changes of what its clients send.
type disguise struct {
	mu       sync.Mutex
	readings [][2][]byte
	refusals []refusal
}

// refusal is a kind of statement that is answered with an error, and not sent.
type refusal struct {
	match func(sql string) bool
	code  string
}

// Rewrite has a text in the statements and settings of all clients read as another one, from the next on.
func (p *Proxy) Rewrite(text, as string) {
	p.disguise.mu.Lock()
	defer p.disguise.mu.Unlock()
	p.disguise.readings = append(p.disguise.readings, [2][]byte{[]byte(text), []byte(as)})
}

// Deny answers each simple query that matches with an error of this code, and does not send it. It is for statements
// outside of transactions.
func (p *Proxy) Deny(match func(sql string) bool, code string) {
	p.disguise.mu.Lock()
	defer p.disguise.mu.Unlock()
	p.disguise.refusals = append(p.disguise.refusals, refusal{match, code})
}

// rewrite returns a packet as it is read, with the length that it has then, which begins at an offset.
func (d *disguise) rewrite(packet []byte, length int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, reading := range d.readings {
		packet = bytes.ReplaceAll(packet, reading[0], reading[1])
	}
	if len(d.readings) > 0 {
		binary.BigEndian.PutUint32(packet[length:], uint32(len(packet)-length))
	}
	return packet
}

// statement returns a message of the client as it is read. Values are no statements.
func (d *disguise) statement(m message) message {
	if m.kind() != msgQuery && m.kind() != msgParse {
		return m
	}
	return d.rewrite(m, 1)
}

// refuses returns the answer to a message that is not to be sent, or nil.
func (d *disguise) refuses(m message) []byte {
	if m.kind() != msgQuery {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	sql, _ := cutText(m.body())
	for _, one := range d.refusals {
		if one.match(sql) {
			return refused(one.code)
		}
	}
	return nil
}

// refused is the error of a server that is ready for the next statement.
func refused(code string) []byte {
	fields := fmt.Sprintf("SERROR\x00VERROR\x00C%s\x00Mthis server does not do that\x00\x00", code)
	answer := append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields))), fields...)
	return append(answer, msgReady, 0, 0, 0, 5, 'I')
}
