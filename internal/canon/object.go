package canon

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// object is an object whose text in the parser's out is not final yet, or an ancestor of such an object.
type object struct {
	start, end  int  // its text, with the braces
	next        int  // the first object which begins after its end
	inPlace     bool // its members are in order, and all of them count
	first, last int  // otherwise, the spans of its members
}

// span is the text of a member in the parser's out.
type span struct {
	start, end int
	object     int // the first object which begins after start
}

// member is the state of a member until its object ends.
type member struct {
	span
	nameStart, nameEnd int    // its name in the parser's src, without the quotes
	rank               uint64 // of the name's first characters
	plain              bool   // the name is ASCII without escapes
	omitted            bool   // it does not count
}

// sortKey represents a member in a sort: it is small, and its rank is nearly always decisive.
type sortKey struct {
	rank  uint64
	index int
}

// object parses an object.
func (p *parser) object(v view) (counts bool, err error) {
	self, first := len(p.objects), len(p.open)
	p.objects = append(p.objects, object{start: len(p.out)})
	counts = v.included
	inPlace := true
	for more, err := p.enter('}'); more || err != nil; more, err = p.following('}') {
		if err != nil {
			return false, err
		}
		memberCounts, err := p.member(v)
		if err != nil {
			return false, err
		}
		last := len(p.open) - 1
		counts = counts || memberCounts
		inPlace = inPlace && memberCounts &&
			(last == first || p.compareNames(&p.open[last-1], &p.open[last]) < 0)
	}
	err = p.note(self, p.open[first:], inPlace)
	p.open = p.open[:first]
	return counts, err
}

// member parses a member and adds it to the open ones.
func (p *parser) member(v view) (counts bool, err error) {
	if p.peek() != '"' {
		return false, p.fail("no member name")
	}
	self := len(p.open)
	p.open = append(p.open, member{})
	m := &p.open[self]
	m.start, m.object = len(p.out), len(p.objects)
	m.nameStart = p.pos + 1
	if m.plain, err = p.text(); err != nil {
		return false, err
	}
	m.nameEnd = p.pos - 1
	if m.plain {
		m.rank = plainRank(p.src[m.nameStart:], m.nameEnd-m.nameStart)
	} else {
		m.rank = utf16Rank(p.name(m))
	}
	name := p.out[m.start+1 : len(p.out)-1]
	if p.next() != ':' {
		return false, p.fail("no colon after a member name")
	}
	p.take()
	p.next()
	counts, err = p.value(v.member(name))
	m = &p.open[self] // elsewhere if open has grown
	m.end, m.omitted = len(p.out), !counts
	return counts, err
}

// name returns the name of m as spelled in the source.
func (p *parser) name(m *member) []byte {
	return p.src[m.nameStart:m.nameEnd]
}

// compareNames orders members.
func (p *parser) compareNames(a, b *member) int {
	if a.rank != b.rank {
		return cmp.Compare(a.rank, b.rank)
	}
	if a.plain && b.plain {
		return bytes.Compare(p.name(a), p.name(b))
	}
	return compareUTF16(p.name(a), p.name(b))
}

// note completes the entry of the object numbered self, or removes it if nothing in it has to change.
func (p *parser) note(self int, members []member, inPlace bool) error {
	if inPlace && len(p.objects) == self+1 {
		p.objects = p.objects[:self]
		return nil
	}
	first := len(p.spans)
	if !inPlace {
		if err := p.addSpans(members); err != nil {
			return err
		}
	}
	o := &p.objects[self]
	o.end, o.next = len(p.out), len(p.objects)
	o.inPlace, o.first, o.last = inPlace, first, len(p.spans)
	return nil
}

// addSpans adds the spans of the members that count, in order.
func (p *parser) addSpans(members []member) error {
	p.keys = p.keys[:0]
	for i := range members {
		p.keys = append(p.keys, sortKey{members[i].rank, i})
	}
	p.sortKeys(members)
	for i, key := range p.keys {
		m := &members[key.index]
		if i > 0 && p.keys[i-1].rank == key.rank && p.compareNames(&members[p.keys[i-1].index], m) == 0 {
			return p.fail("duplicate member name in the object that ends")
		}
		if !m.omitted {
			p.spans = append(p.spans, m.span)
		}
	}
	return nil
}

// sortKeys sorts keys, which stand for members.
func (p *parser) sortKeys(members []member) {
	const few = 16 // so few are sorted faster in the simplest way
	keys := p.keys
	if len(keys) > few {
		slices.SortFunc(keys, func(a, b sortKey) int {
			return p.compareNames(&members[a.index], &members[b.index])
		})
		return
	}
	for i := 1; i < len(keys); i++ {
		key := keys[i]
		at := i
		for ; at > 0 && key.rank <= keys[at-1].rank; at-- {
			if key.rank == keys[at-1].rank &&
				p.compareNames(&members[key.index], &members[keys[at-1].index]) >= 0 {
				break
			}
			keys[at] = keys[at-1]
		}
		keys[at] = key
	}
}

// appendOrdered appends out[from:to] to dst with the members of all objects in
// their places. Next is the first object which begins at or after from.
func (p *parser) appendOrdered(dst []byte, from, to, next int) []byte {
	for next < len(p.objects) && p.objects[next].start < to {
		o := &p.objects[next]
		if o.inPlace {
			next++
			continue
		}
		dst = append(dst, p.out[from:o.start]...)
		dst = append(dst, '{')
		for i, s := range p.spans[o.first:o.last] {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = p.appendOrdered(dst, s.start, s.end, s.object)
		}
		dst = append(dst, '}')
		from, next = o.end, o.next
	}
	return append(dst, p.out[from:to]...)
}

// plainRank returns a number which orders plain strings by their first eight
// characters: a string of a lower rank than another's comes before it. The
// string is text[:length].
func plainRank(text []byte, length int) uint64 {
	if len(text) < 8 {
		return utf16Rank(text[:length])
	}
	rest := ^uint64(0) >> (8 * uint(length))
	return binary.BigEndian.Uint64(text) &^ rest
}

// utf16Rank is plainRank for all strings. It stops at the first character
// that is not ASCII: any such character comes after all ASCII characters.
func utf16Rank(s []byte) uint64 {
	var head [8]byte
	for i := 0; i < len(head) && len(s) > 0; i++ {
		r, size := firstChar(s)
		if r >= utf8.RuneSelf {
			head[i] = utf8.RuneSelf
			break
		}
		head[i] = byte(r)
		s = s[size:]
	}
	return binary.BigEndian.Uint64(head[:])
}

// compareUTF16 compares two strings, as spelled in JSON, by the UTF-16 code units
// of what they stand for.
func compareUTF16(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		r, m := firstChar(a)
		s, n := firstChar(b)
		if r != s {
			return cmp.Compare(codeUnits(r), codeUnits(s))
		}
		a, b = a[m:], b[n:]
	}
	return cmp.Compare(len(a), len(b))
}

// firstChar returns the first character of a string, as spelled in JSON, and
// the length of its text.
func firstChar(s []byte) (r rune, size int) {
	if s[0] == '\\' {
		return unescape(s)
	}
	return utf8.DecodeRune(s)
}

// codeUnits returns a number which orders characters by their code units: the
// few above the surrogates come after all that are written with surrogates.
func codeUnits(r rune) rune {
	if 0xe000 <= r && r <= 0xffff {
		return r + utf8.MaxRune
	}
	return r
}
