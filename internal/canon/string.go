package canon

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text parses the string at pos and reports whether it is plain: ASCII without
// escapes.
func (p *parser) text() (plain bool, err error) {
	start := p.pos
	end := start + 1 + plainPrefix(p.src[start+1:])
	if end < len(p.src) && p.src[end] == '"' {
		p.pos = end + 1
		p.out = append(p.out, p.src[start:p.pos]...)
		return true, nil
	}
	p.pos = end
	return false, p.mixedText(start)
}

// mixedText parses the rest of a string which is not plain. It is plain from
// start to pos.
func (p *parser) mixedText(start int) error {
	for {
		switch c := p.peek(); {
		case c == '"':
			p.pos++
			p.out = append(p.out, p.src[start:p.pos]...)
			return nil
		case c == '\\':
			p.out = append(p.out, p.src[start:p.pos]...)
			if err := p.escape(); err != nil {
				return err
			}
			start = p.pos
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(p.src[p.pos:])
			if r == utf8.RuneError && size == 1 {
				return p.fail("invalid UTF-8")
			}
			p.pos += size
		default:
			return p.fail("control character in a string, or no end of it")
		}
		p.pos += plainPrefix(p.src[p.pos:])
	}
}

// plainPrefix returns how many bytes at the head of s are ASCII that needs no escape in a string. It checks eight bytes at
// a time: each term sets the top bit of the bytes that it looks for, and carries only affect bytes after the first hit.
func plainPrefix(s []byte) int {
	const (
		ones = 0x0101010101010101
		tops = 0x80 * ones
	)
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		word := binary.LittleEndian.Uint64(s[n:])
		control := word - ' '*ones
		quote := word ^ '"'*ones - ones
		backslash := word ^ '\\'*ones - ones
		if hit := (word | control | quote | backslash) & tops; hit != 0 {
			return n + bits.TrailingZeros64(hit)/8
		}
	}
	for n < len(s) && s[n] >= ' ' && s[n] < utf8.RuneSelf && s[n] != '"' && s[n] != '\\' {
		n++
	}
	return n
}

// escape parses the escape sequence at pos.
func (p *parser) escape() error {
	r, size := unescape(p.src[p.pos:])
	if size == 0 {
		return p.fail("malformed escape sequence or lone surrogate")
	}
	p.out = appendChar(p.out, r)
	p.pos += size
	return nil
}

// unescape returns what the escape sequence at the head of s stands for, and its
// length, which is 0 if it stands for nothing.
func unescape(s []byte) (r rune, size int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch c := s[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	high, ok := codeUnit(s)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(high) {
		return high, 6
	}
	low, _ := codeUnit(s[6:])
	if r = utf16.DecodeRune(high, low); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// codeUnit returns the UTF-16 code unit whose escape sequence is at the head of
// s, and whether there is one.
func codeUnit(s []byte) (unit rune, ok bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	for _, c := range s[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | rune(c)
	}
	return unit, true
}

// appendChar appends r as it is written in a canonical string.
func appendChar(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < ' ' {
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
	}
	return utf8.AppendRune(dst, r)
}
