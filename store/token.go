package store

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

const (
	// TokenStep is the unit of time in tokens.
	TokenStep = time.Millisecond
	// TokenScale is the distance between the tokens of two successive units of time. The space between them is filled
	// at random.
	TokenScale = 1 << 21
)

// NewToken returns a random attempt token for [Event].Token, larger than the floor. It consists of the clock and random
// bits: two processes with equal clocks get different tokens, even above the floor. A handler may send its token to
// another system as a fence before it is known which transaction commits (rule S7: no token is used twice). A token
// never proves which write is stored.
func NewToken(now time.Time, floor int64) int64 {
	if token := TokenAt(now, TokenDraw()); token > floor {
		return token
	}
	return floor + 1 + TokenDraw()
}

// TokenAt returns the token for a time and a result of [TokenDraw].
func TokenAt(now time.Time, draw int64) int64 {
	return now.UnixMicro()/TokenStep.Microseconds()*TokenScale + draw
}

// TokenDraw returns the random part of a token.
func TokenDraw() int64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint32(b[:]) % TokenScale)
}
