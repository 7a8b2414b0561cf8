package canon

import (
	"cmp"
	"encoding/binary"
	"unicode/utf8"
)

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

// utf16Rank is plainRank for all strings. It does not look past the
// first character that is not ASCII: any such comes after all that are.
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
