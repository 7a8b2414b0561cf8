// Package canon gives JSON documents a canonical form, so that two spellings of the same value have the same
// fingerprint.
//
// The form is the one of RFC 8785: no white space, object members sorted by the UTF-16 code units of their names,
// strings with as few escapes as possible, numbers formatted as ECMAScript does. There is one deliberate difference: a
// number keeps all of its digits, whatever their count, instead of being rounded to a double. 1.0, 1e0 and 1 are
// therefore equal, and 9007199254740993 and 9007199254740992 are not.
//
// Text without a single meaning is refused: duplicate member names, lone surrogates, invalid UTF-8, data after the
// document and nesting deeper than [MaxDepth].
package canon

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// MaxDepth is how many arrays and objects may be open at once.
const MaxDepth = 512

// ErrNotJSON is wrapped by every error of [Append].
var ErrNotJSON = errors.New("not canonicalisable JSON")

// Append appends the canonical form of the JSON text src to dst and returns the extended slice. Parts of the document
// that do not count according to sel are left out, but must be JSON too; a nil sel means that everything counts.
//
// If src is not JSON, dst is returned unchanged, with an error that wraps [ErrNotJSON].
//
// Append does not modify src and keeps no reference to it. The free capacity of dst must not overlap src. Append may be
// called from many goroutines at once.
func Append(dst, src []byte, sel *Selection) ([]byte, error) {
	p := acquire(src)
	defer p.release()
	if err := p.document(sel.view()); err != nil {
		return dst, err
	}
	return p.appendOrdered(dst, 0, len(p.out), 0), nil
}

// syntaxError reports where and why a text is not JSON. It quotes nothing of the text, which may be confidential.
type syntaxError struct {
	offset int
	reason string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%v: %s at byte %d", ErrNotJSON, e.reason, e.offset)
}

func (e *syntaxError) Unwrap() error { return ErrNotJSON }

// parser reads a document once and writes its canonical text in the order of the document. It records the objects whose
// members must be reordered or left out; appendOrdered then moves everything to its place with one copy, however deep
// the objects are nested.
type parser struct {
	src   []byte
	pos   int // of the next byte of src
	depth int // count of open arrays and objects

	out     []byte   // canonical text, in document order
	open    []member // members so far of the open objects, innermost last
	objects []object // noted objects, by their start in out
	spans   []span   // members of the noted objects, sorted
	keys    []sortKey
}

// maxKept bounds the length of each slice which an idle parser keeps.
const maxKept = 64 << 10

var idle = sync.Pool{New: func() any { return new(parser) }}

func acquire(src []byte) *parser {
	p := idle.Get().(*parser)
	p.src, p.pos, p.depth = src, 0, 0
	p.out = slices.Grow(p.out[:0], len(src))
	p.open, p.objects, p.spans = p.open[:0], p.objects[:0], p.spans[:0]
	return p
}

func (p *parser) release() {
	const maxMembers = maxKept / 64
	if cap(p.out) > maxKept || max(cap(p.open), cap(p.objects), cap(p.spans), cap(p.keys)) > maxMembers {
		return // so that one giant document does not hold memory permanently
	}
	p.src = nil
	idle.Put(p)
}

// document parses the whole of src.
func (p *parser) document(v view) error {
	p.next()
	counts, err := p.value(v)
	if err != nil {
		return err
	}
	if !counts {
		p.out = append(p.out, omission)
	}
	if p.next(); p.pos < len(p.src) {
		return p.fail("data after the document")
	}
	return nil
}

// value parses the value at pos, where white space has been skipped. It writes
// the value if any of it counts, and reports whether any does.
func (p *parser) value(v view) (counts bool, err error) {
	out, objects, spans := len(p.out), len(p.objects), len(p.spans)
	counts = v.included
	switch p.peek() {
	case '"':
		_, err = p.text()
	case '{':
		counts, err = p.object(v)
	case '[':
		counts, err = p.array(v)
	case 't':
		err = p.literal("true")
	case 'f':
		err = p.literal("false")
	case 'n':
		err = p.literal("null")
	default:
		err = p.number()
	}
	if !counts {
		p.out, p.objects, p.spans = p.out[:out], p.objects[:objects], p.spans[:spans]
	}
	return counts, err
}

func (p *parser) literal(word string) error {
	end := p.pos + len(word)
	if end > len(p.src) || string(p.src[p.pos:end]) != word {
		return p.fail("unknown literal")
	}
	p.out = append(p.out, word...)
	p.pos = end
	return nil
}

// array parses an array. An element which does not count leaves an omission,
// so that the others keep their positions. If the array itself is not included,
// but only something within it, then nothing after the last element that counts
// matters, not even how much there is.
func (p *parser) array(v view) (counts bool, err error) {
	counts = v.included
	index, end := 0, 0
	for more, err := p.enter(']'); more || err != nil; more, err = p.following(']') {
		if err != nil {
			return false, err
		}
		elementCounts, err := p.value(v.element(index))
		if err != nil {
			return false, err
		}
		if elementCounts {
			counts = true
			end = len(p.out)
		} else {
			p.out = append(p.out, omission)
		}
		index++
	}
	if counts && !v.included {
		p.out = append(p.out[:end], ']')
	}
	return counts, nil
}

// enter consumes the bracket at pos, which closing matches, and reports whether there is anything in between.
func (p *parser) enter(closing byte) (inside bool, err error) {
	if p.depth == MaxDepth {
		return false, p.fail("nesting too deep")
	}
	p.depth++
	p.take()
	if p.next() != closing {
		return true, nil
	}
	p.depth--
	p.take()
	return false, nil
}

// following consumes the byte after an element or a member, and reports whether it is a comma rather than the closing
// bracket.
func (p *parser) following(closing byte) (bool, error) {
	switch p.next() {
	case ',':
		p.take()
		p.next()
		return true, nil
	case closing:
		p.depth--
		p.take()
		return false, nil
	}
	return false, p.fail("no comma or closing bracket")
}

// take consumes the byte at pos and writes it.
func (p *parser) take() {
	p.out = append(p.out, p.src[p.pos])
	p.pos++
}

// next skips white space and returns the result of peek.
func (p *parser) next() byte {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; c {
		case ' ', '\n', '\r', '\t':
			p.pos++
		default:
			return c
		}
	}
	return 0
}

// peek returns the byte at pos. At the end it returns 0, with which nothing in
// JSON begins.
func (p *parser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) fail(reason string) error {
	return &syntaxError{offset: p.pos, reason: reason}
}
