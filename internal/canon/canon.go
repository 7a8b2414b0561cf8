// Package canon gives JSON documents a canonical form, so that two spellings of
// the same value have the same fingerprint.
//
// The form is that of RFC 8785: no white space, object members sorted by the
// UTF-16 code units of their names, strings with as few escapes as possible,
// numbers laid out as ECMAScript does. There is one deliberate difference: a
// number keeps all of its digits, whatever their count, instead of being rounded
// to a double. 1.0, 1e0 and 1 are therefore equal, and 9007199254740993 and
// 9007199254740992 are not.
//
// What has no single meaning is refused: duplicate member names, lone
// surrogates, invalid UTF-8, data after the document and nesting past
// [MaxDepth].
package canon

import (
	"errors"
	"fmt"
)

// MaxDepth is how many arrays and objects may be open at once.
const MaxDepth = 512

// ErrNotJSON is what every error of [Append] wraps.
var ErrNotJSON = errors.New("not canonicalisable JSON")

// Append appends the canonical form of the JSON text src to dst and returns the
// extended slice. The parts of the document which do not count according to sel
// are left out; a nil sel means that everything counts. They must be JSON all
// the same.
//
// If src is not JSON, dst is returned as it was, with an error that wraps
// [ErrNotJSON].
//
// Append does not modify src and keeps no reference to it. The free capacity of
// dst must not overlap src. Append may be called from many goroutines at once.
func Append(dst, src []byte, sel *Selection) ([]byte, error) {
	p := borrow(src)
	defer p.giveBack()
	if err := p.document(sel.view()); err != nil {
		return dst, err
	}
	return p.appendOrdered(dst, 0, len(p.out), 0), nil
}

// A syntaxError says where and why a text is not JSON. It quotes nothing of the
// text, which may be confidential.
type syntaxError struct {
	offset int
	reason string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%v: %s at byte %d", ErrNotJSON, e.reason, e.offset)
}

func (e *syntaxError) Unwrap() error { return ErrNotJSON }
