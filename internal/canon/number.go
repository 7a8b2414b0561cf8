package canon

import (
	"bytes"
	"slices"
	"strconv"
)

// ECMAScript uses an exponent from this many digits before the point, or this many zeros after it.
const (
	maxWhole = 21
	maxZeros = 5
)

// number parses the number at pos.
func (p *parser) number() error {
	text := p.src[p.pos:]
	if n := normalPrefix(text); n > 0 {
		p.out = append(p.out, text[:n]...)
		p.pos += n
		return nil
	}
	d, n := scanDecimal(text)
	if n == 0 {
		return p.fail("malformed value")
	}
	p.out = d.append(p.out)
	p.pos += n
	return nil
}

// normalPrefix returns the length of the number at the head of text if it is of
// a common kind and in its normal form already, otherwise 0.
func normalPrefix(text []byte) int {
	n := 0
	if len(text) > 0 && text[0] == '-' {
		n = 1
	}
	whole := digitPrefix(text[n:])
	if whole == 0 || whole > maxWhole || text[n] == '0' {
		return 0
	}
	n += whole
	if n < len(text) && text[n] == '.' {
		n++
		n += digitPrefix(text[n:])
		if last := text[n-1]; last == '0' || last == '.' {
			return 0
		}
	}
	if n < len(text) && text[n]|0x20 == 'e' {
		return 0
	}
	return n
}

func digitPrefix(text []byte) int {
	n := 0
	for n < len(text) && text[n]-'0' <= 9 {
		n++
	}
	return n
}

// decimal is a number as spelled: whole.fraction times ten to the exponent.
type decimal struct {
	negative         bool
	whole, fraction  []byte
	negativeExponent bool
	exponent         []byte
}

// scanDecimal returns the number at the head of text, and its length, which is 0
// if there is none.
func scanDecimal(text []byte) (d decimal, length int) {
	rest := text
	take := func(c byte) bool {
		taken := len(rest) > 0 && rest[0] == c
		if taken {
			rest = rest[1:]
		}
		return taken
	}
	takeDigits := func() (digits []byte) {
		n := digitPrefix(rest)
		digits, rest = rest[:n], rest[n:]
		return digits
	}

	d.negative = take('-')
	d.whole = takeDigits()
	if len(d.whole) == 0 || len(d.whole) > 1 && d.whole[0] == '0' {
		return d, 0
	}
	if take('.') {
		if d.fraction = takeDigits(); len(d.fraction) == 0 {
			return d, 0
		}
	}
	if take('e') || take('E') {
		if d.negativeExponent = take('-'); !d.negativeExponent {
			take('+')
		}
		if d.exponent = takeDigits(); len(d.exponent) == 0 {
			return d, 0
		}
	}
	return d, len(text) - len(rest)
}

// append appends the normal form of d: all digits but the zeros at either end,
// laid out as ECMAScript does.
func (d decimal) append(dst []byte) []byte {
	whole, fraction := bytes.TrimLeft(d.whole, "0"), d.fraction
	if len(whole) == 0 {
		fraction = bytes.TrimLeft(fraction, "0")
	}
	// The number is 0.DIGITS times ten to the sum of point and exponent.
	point := int64(len(whole) + len(fraction) - len(d.fraction))
	fraction = bytes.TrimRight(fraction, "0")
	if len(fraction) == 0 {
		whole = bytes.TrimRight(whole, "0")
	}
	if len(whole)+len(fraction) == 0 {
		return append(dst, '0')
	}

	if d.negative {
		dst = append(dst, '-')
	}
	start := len(dst)
	dst = append(append(dst, whole...), fraction...)
	count := int64(len(dst) - start)
	exponent, small := d.smallExponent()
	at := point + exponent
	switch {
	case small && count <= at && at <= maxWhole:
		return append(dst, "00000000000000000000"[:at-count]...)
	case small && 0 < at && at <= maxWhole:
		return slices.Insert(dst, start+int(at), '.')
	case small && -maxZeros <= at && at <= 0:
		return slices.Insert(dst, start, []byte("0.00000")[:2-at]...)
	}
	if count > 1 {
		dst = slices.Insert(dst, start+1, '.')
	}
	dst = append(dst, 'e')
	if small {
		return appendSigned(dst, at-1)
	}
	return d.appendHugeExponent(dst, point-1)
}

// smallExponent returns the exponent if it is so small that arithmetic with it
// and the length of a text cannot overflow.
func (d decimal) smallExponent() (exponent int64, ok bool) {
	digits := bytes.TrimLeft(d.exponent, "0")
	if len(digits) > 18 {
		return 0, false
	}
	for _, c := range digits {
		exponent = exponent*10 + int64(c-'0')
	}
	if d.negativeExponent {
		exponent = -exponent
	}
	return exponent, true
}

func appendSigned(dst []byte, n int64) []byte {
	if n >= 0 {
		dst = append(dst, '+')
	}
	return strconv.AppendInt(dst, n, 10)
}

// appendHugeExponent appends the sum of delta and an exponent that is not small.
// It adds digit by digit, in time proportional to the length of the text.
func (d decimal) appendHugeExponent(dst []byte, delta int64) []byte {
	if d.negativeExponent {
		dst = append(dst, '-')
		delta = -delta
	} else {
		dst = append(dst, '+')
	}
	start := len(dst)
	dst = append(dst, '0') // for the carry
	dst = append(dst, bytes.TrimLeft(d.exponent, "0")...)
	for i := len(dst) - 1; delta != 0; i-- {
		sum := int64(dst[i]-'0') + delta
		digit := (sum%10 + 10) % 10
		dst[i] = '0' + byte(digit)
		delta = (sum - digit) / 10
	}
	zeros := len(dst) - start - len(bytes.TrimLeft(dst[start:], "0"))
	return slices.Delete(dst, start, start+zeros)
}
