package servers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
)

// With this file, a proxy simulates a server that behaves differently from the real
// server: it reads the texts of statements differently, or refuses some statements.

// disguise is what a proxy changes in its clients' messages.
type disguise struct {
	mu       sync.Mutex
	readings [][2][]byte
	refusals []refusal
}

// refusal is a kind of statement that gets an error instead of being sent.
type refusal struct {
	match func(sql string) bool
	code  string
}

// Rewrite replaces a text in the statements and settings of all clients by another text, from the next message on.
func (p *Proxy) Rewrite(text, as string) {
	p.disguise.mu.Lock()
	defer p.disguise.mu.Unlock()
	p.disguise.readings = append(p.disguise.readings, [2][]byte{[]byte(text), []byte(as)})
}

// Deny answers each matching simple query with an error of this code,
// instead of sending it. It is for statements outside of transactions.
func (p *Proxy) Deny(match func(sql string) bool, code string) {
	p.disguise.mu.Lock()
	defer p.disguise.mu.Unlock()
	p.disguise.refusals = append(p.disguise.refusals, refusal{match, code})
}

// rewrite returns a packet with the replaced texts and its new length, which is stored at an offset.
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

// statement returns a client's message with the replaced texts. Parameter values are not changed.
func (d *disguise) statement(m message) message {
	if m.kind() != msgQuery && m.kind() != msgParse {
		return m
	}
	return d.rewrite(m, 1)
}

// refuses returns the answer to a refused message; nil if the message is to be sent.
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

// refused returns the error of a server that is ready for the next statement.
func refused(code string) []byte {
	fields := fmt.Sprintf("SERROR\x00VERROR\x00C%s\x00Mthis server does not do that\x00\x00", code)
	answer := append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields))), fields...)
	return append(answer, msgReady, 0, 0, 0, 5, 'I')
}
