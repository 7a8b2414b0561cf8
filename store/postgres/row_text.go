package postgres

import "encoding/binary"

// This file holds the code in which answers of text are stored, a static one of Huffman's for each place that a
// byte may be in: JSON takes about six tenths of its bytes. It is kept compatible for ever, like all of a row. See
// decision 35.

// The places that a byte may be in, by which its code is chosen: behind one of a kind.
const (
	afterForeign = iota // no ASCII
	afterSmall
	afterCapital
	afterDigit
	afterQuote
	afterColon
	afterComma // and the beginning
	afterOther
	places
)

const (
	// endOfText is behind the last byte: the bits that are left of it are the beginning of this symbol, which is all ones.
	endOfText = 256
	symbols   = 257
	// longestCode is the most bits that a symbol takes, and quickBits how many are looked at first.
	longestCode = 15
	quickBits   = 10
)

// codeLengths has the bits that each symbol takes, as hexadecimal digits. They were counted in published examples of
// answers, and in such as interfaces for payments give; they never change.
var codeLengths = [places]string{
	// Behind what is no ASCII.
	"ffffffffffffffffffffffffffffffff5f5fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff" +
		"ffa9f8afffff5fa8ffba9faaffffffff74676878796668788aa97886678967f79f899ff7789f78776676969667564767" +
		"fff99fffffffff5746ffffff67fffffffff57569879768fffffffeeeeeeeeeeef",
	// Behind a small letter.
	"fffeeeeeeeeeeeeeeeeeeeeeeeeeeeee6e4eeeededed868887787888887eedced8a99aaaa8aaa99a9a999aaaaaaeaee6" +
		"e46553677598554569444577769eeaeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee" +
		"eeedeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeef",
	// Behind a capital letter.
	"ffffffffffffffffffffffffffffffff8f4ffedddbfbd9a96567777787ceecdff56665777677666667666677677faff7" +
		"f48755776677665578575677768fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeeeeeeee" +
		"eee8eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeef",
	// Behind a digit.
	"feeeeeeeeedeeeeeeeeeeeeeeeeeeeee9e5eeceeede8646844444444445eedeee99aa9aaaaaaaaaaaaaa6aaaaa6ebdeb" +
		"d566666aaa9aaaaaaaaaaaaa9aaed7eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee" +
		"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeef",
	// Behind a quotation mark.
	"feeeeeeeeeaeeeeeeeeeeeeeeeeeeeeebe9eceeeeede3cea87599989992ebeeee78887a9a89987997c87799accceb9ee" +
		"e5746579769866665965566abbbbe4eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee" +
		"eeeeedeeeeeeeececdeeeeeeceeeeeeeeeecddbedededeeeeeeeeeeeeeeeeeeef",
	// Behind a colon.
	"ffffffffffffffffffffffffffffffff6f1fdfffffcffdf654555577778faffffccccbfcfdffdafbcfdbcfefffc59fff" +
		"f6a99869b8c89979af9766beeef4ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff" +
		"fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	// Behind a comma, and at the beginning.
	"eeeeeeeeee3eeeeeeeeeeeeeeeeeeeee5e1eeeeeaeeeeeae9aeceeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee4eee" +
		"eeeeeeeeddddddddddd9ddddddd2dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd" +
		"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddde",
	// Behind anything else.
	"ffffffffff8fffffffffffffffffffff4f3feffdadcd5aa74456666666afcceef78889aaa89988a98b87999aabaa76fd" +
		"a4656568959977677a7658679996f5ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff" +
		"fffcfdffffffffddacffffffbffffffffeedcbdceeeeceeeeeeeeeeeeeeeeeeef",
}

// symbolCode is a symbol in a place: its bits, and how many.
type symbolCode struct{ bits, length uint16 }

// textCode is what follows from the lengths: of two symbols the one with less bits comes first, or the smaller one.
type textCode struct {
	after [256]uint8
	codes [places][symbols]symbolCode
	// quick has for each place and the next bits in it the symbol that they begin with in the upper half, then the place
	// behind it and how many bits it takes, or zero if it takes more.
	quick [places << quickBits]uint16
	// sorted has the symbols in their order. Those of a length begin at start, and their bits with first.
	sorted [places][symbols]uint16
	start  [places][longestCode + 2]uint16
	first  [places][longestCode + 2]uint16
}

var text = newTextCode()

func newTextCode() *textCode {
	c := new(textCode)
	for i := range c.after {
		c.after[i] = placeAfter(byte(i))
	}
	for place := range c.codes {
		c.assign(place)
	}
	return c
}

func placeAfter(b byte) uint8 {
	switch {
	case b >= 0x80:
		return afterForeign
	case 'a' <= b && b <= 'z':
		return afterSmall
	case 'A' <= b && b <= 'Z':
		return afterCapital
	case '0' <= b && b <= '9':
		return afterDigit
	case b == '"':
		return afterQuote
	case b == ':':
		return afterColon
	case b == ',':
		return afterComma
	default:
		return afterOther
	}
}

// assign gives the symbols in a place their bits.
func (c *textCode) assign(place int) {
	var bits, placed uint16
	for length := uint16(1); length <= longestCode; length++ {
		bits <<= 1
		c.first[place][length], c.start[place][length] = bits, placed
		for symbol := range uint16(symbols) {
			if lengthOf(place, symbol) != length {
				continue
			}
			c.codes[place][symbol] = symbolCode{bits: bits, length: length}
			c.sorted[place][placed] = symbol
			if length <= quickBits {
				from := place<<quickBits | int(bits)<<(quickBits-length)
				for i := range 1 << (quickBits - length) {
					c.quick[from+i] = symbol<<8 | uint16(c.after[symbol])<<4 | length
				}
			}
			bits++
			placed++
		}
	}
	c.start[place][longestCode+1] = placed
}

func lengthOf(place int, symbol uint16) uint16 {
	digit := codeLengths[place][symbol]
	if digit >= 'a' {
		return uint16(digit-'a') + 10
	}
	return uint16(digit - '0')
}

// appendTo appends bytes in the code.
func (c *textCode) appendTo(dst, plain []byte) []byte {
	var bits uint64
	var waiting uint16
	place := uint8(afterComma)
	for _, b := range plain {
		code := c.codes[place][b]
		bits = bits<<code.length | uint64(code.bits)
		if waiting += code.length; waiting >= 32 {
			waiting -= 32
			dst = binary.BigEndian.AppendUint32(dst, uint32(bits>>waiting))
		}
		place = c.after[b]
	}
	for ; waiting >= 8; waiting -= 8 {
		dst = append(dst, byte(bits>>(waiting-8)))
	}
	if waiting > 0 {
		dst = append(dst, byte(bits<<(8-waiting))|0xff>>waiting)
	}
	return dst
}

// parse is the inverse of appendTo, unless the bytes are damaged.
func (c *textCode) parse(coded []byte) (plain []byte, ok bool) {
	plain = make([]byte, 0, 2*len(coded))
	var bits uint64
	left := 0 // how many of the bits are not read yet
	place := uint8(afterComma)
	for {
		for ; left <= 48 && len(coded) > 0; left += 8 {
			bits, coded = bits<<8|uint64(coded[0]), coded[1:]
		}
		for left >= quickBits {
			quick := c.quick[uint(place)<<quickBits|uint(bits>>(left-quickBits))&(1<<quickBits-1)]
			if quick == 0 {
				break
			}
			plain, place, left = append(plain, byte(quick>>8)), byte(quick>>4)&15, left-int(quick&15)
		}
		if left >= longestCode || len(coded) == 0 {
			symbol, length := c.next(place, bits, left)
			if symbol == endOfText || length > left {
				return plain, symbol == endOfText && left < 8
			}
			plain, place, left = append(plain, byte(symbol)), c.after[byte(symbol)], left-length
		}
	}
}

// next is the symbol that the bits which are left begin with, and behind them ones. There is one for all that come.
func (c *textCode) next(place uint8, bits uint64, left int) (symbol uint16, length int) {
	const all = 1<<longestCode - 1
	var ahead uint16
	if left >= longestCode {
		ahead = uint16(bits>>(left-longestCode)) & all
	} else {
		ahead = uint16(bits<<(longestCode-left)|all>>left) & all
	}
	for length = 1; ; length++ {
		at := c.start[place][length] + ahead>>(longestCode-length) - c.first[place][length]
		if at < c.start[place][length+1] {
			return c.sorted[place][at], length
		}
	}
}
