package store

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

const (
	// TokenStep is the step of time that tokens count.
	TokenStep = time.Millisecond
	// TokenScale is how far apart the tokens of two successive steps of time are. What lies between them is drawn.
	TokenScale = 1 << 21
)

// NewToken draws an attempt token for [Event].Token, larger than every token up to the floor. It is made of the clock and
// of random bits: two processes whose clocks agree draw different tokens, also where both are above the floor. A handler
// may send its token to another system as a fence before it is known whose transaction commits (S7: no token is used
// twice). A token never proves whose write is stored.
func NewToken(now time.Time, floor int64) int64 {
	if token := TokenAt(now, TokenDraw()); token > floor {
		return token
	}
	return floor + 1 + TokenDraw()
}

// TokenAt returns the token of a clock and of what [TokenDraw] has drawn.
func TokenAt(now time.Time, draw int64) int64 {
	return now.UnixMicro()/TokenStep.Microseconds()*TokenScale + draw
}

// TokenDraw draws the random part of a token.
func TokenDraw() int64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint32(b[:]) % TokenScale)
}
