package sealed

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/onceward/onceward/store"
)

// A sealed value consists of, in this order: store.SealedPrefix, the version of the format, flags, the id of the key,
// the attempt it was sealed for if flagAttempt is set, the nonce, and the output of AES-GCM for the content. Everything
// before the nonce is authenticated. The format stays readable permanently; golden files in testdata test this.
const (
	formatVersion = 1

	flagCompressed = 1
	flagAttempt    = 2
	flagsKnown     = flagCompressed | flagAttempt

	minHead = len(store.SealedPrefix) + 2 + 4
	maxHead = minHead + 8
)

// head is the decoded beginning of a sealed value.
type head struct {
	key        uint32
	compressed bool
	kept       bool // the attempt is in the value
	attempt    int64
}

func (h *head) append(dst []byte) []byte {
	dst = append(dst, store.SealedPrefix...)
	flags := byte(0)
	if h.compressed {
		flags |= flagCompressed
	}
	if h.kept {
		flags |= flagAttempt
	}
	dst = append(dst, formatVersion, flags)
	dst = binary.BigEndian.AppendUint32(dst, h.key)
	if h.kept {
		dst = binary.BigEndian.AppendUint64(dst, uint64(h.attempt))
	}
	return dst
}

// parseHead decodes the head of a value and returns the bytes after it.
func parseHead(value []byte) (h head, rest []byte, err error) {
	if len(value) < minHead || !store.IsSealed(value) {
		return h, nil, errBroken
	}
	rest = value[len(store.SealedPrefix):]
	if rest[0] != formatVersion {
		return h, nil, unreadable("it is sealed in a format that is not known to this program")
	}
	flags := rest[1]
	h.compressed, h.kept = flags&flagCompressed != 0, flags&flagAttempt != 0
	h.key, rest = binary.BigEndian.Uint32(rest[2:]), rest[6:]
	if flags&^flagsKnown != 0 || h.kept && len(rest) < 8 {
		return h, nil, errBroken
	}
	if h.kept {
		h.attempt, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
	}
	return h, rest, nil
}

// These are the kinds of content. Their numbers are authenticated, and never change.
const (
	kindHeader     = 1
	kindBody       = 2
	kindData       = 3
	kindLateHeader = 4
	kindLateBody   = 5
	kindEvent      = 6
	kindMessage    = 7
	kindAnswer     = 8
)

// binding is the place that content is sealed for: it cannot be opened for any other place.
type binding struct {
	kind  byte
	parts []string
	// kept means that the value contains the attempt, because the code that opens it may not know the attempt.
	kept    bool
	attempt int64
}

// appendTo appends the binding to the head of a value, unambiguously.
func (b *binding) appendTo(head []byte) []byte {
	size := len(head) + 1
	for _, part := range b.parts {
		size += binary.MaxVarintLen64 + len(part)
	}
	dst := append(make([]byte, 0, size), head...)
	dst = append(dst, b.kind)
	for _, part := range b.parts {
		dst = binary.AppendUvarint(dst, uint64(len(part)))
		dst = append(dst, part...)
	}
	return dst
}

// number returns a number as a part of a binding.
func number(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

// yes returns a boolean as a part of a binding.
func yes(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// keyOf returns the id of the key that a value is sealed with, and false for content that is not sealed or whose head
// cannot be decoded.
func keyOf(value []byte) (id uint32, known bool) {
	h, _, err := parseHead(value)
	return h.key, err == nil
}

// isPlain reports whether content was never sealed. A value that begins almost like a sealed value is a damaged sealed
// value.
func isPlain[T string | []byte](content T) bool {
	if len(content) < len(store.SealedPrefix) {
		return true
	}
	differ := 0
	for i := range len(store.SealedPrefix) {
		differ += bits.OnesCount8(content[i] ^ store.SealedPrefix[i])
	}
	return differ > maxDamage
}

// maxDamage is the largest number of wrong bits in the prefix with which a value is still recognised.
const maxDamage = 4

// plainHeader reports whether header fields were never sealed.
func plainHeader(header []store.HeaderField) bool {
	return !slices.ContainsFunc(header, func(f store.HeaderField) bool { return !isPlain(f.Value) })
}
