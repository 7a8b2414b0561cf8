package ledger

import (
	"errors"
	"fmt"
	"iter"
)

// ErrOrder is returned when a source does not keep the order of keys. The error is an [*OrderError].
var ErrOrder = errors.New("ledger: entries out of order")

// errNoKey is returned for an entry that nothing can be compared with.
var errNoKey = errors.New("an entry has no key")

// OrderError says where a source left the order. What was reported before may be wrong, because the entries that were
// not found may come later: it has to be found anew once the source is in order.
type OrderError struct {
	// Side is the source.
	Side Side
	// Before is the key that came first, or the one that the source was to begin after.
	Before string
	// Key is the one that came behind it, and is smaller, or is the key that was to be left out.
	Key string
}

// Error describes the two keys.
func (e *OrderError) Error() string {
	return fmt.Sprintf("ledger: entries out of order: the %s source lists %q behind %q", e.Side, e.Key, e.Before)
}

// Is makes errors.Is(err, ErrOrder) true.
func (e *OrderError) Is(target error) bool { return target == ErrOrder }

// stream is one side of the merge: the entry at its head, and what is needed to trust the next one.
type stream struct {
	side  Side
	next  func() (Entry, error, bool)
	head  Entry // before the first entry, one with the key to begin after
	begun bool
	more  bool // there is a head
}

// newStream returns a stream that stands before its first entry, and what ends it.
func newStream(side Side, entries iter.Seq2[Entry, error], after string) (*stream, func()) {
	next, stop := iter.Pull2(entries)
	return &stream{side: side, next: next, head: Entry{Key: after}}, stop
}

// advance takes the next entry as the head.
func (s *stream) advance() error {
	entry, err, ok := s.next()
	switch {
	case !ok:
		s.head, s.more = Entry{}, false
		return nil
	case err != nil:
		return fmt.Errorf("ledger: the %s source: %w", s.side, err)
	case entry.Key == "":
		return fmt.Errorf("ledger: the %s source: %w", s.side, errNoKey)
	case entry.Key < s.head.Key, !s.begun && entry.Key == s.head.Key:
		return &OrderError{Side: s.side, Before: s.head.Key, Key: entry.Key}
	}
	s.head, s.begun, s.more = entry, true, true
	return nil
}

// at reports whether the head has that key.
func (s *stream) at(key string) bool { return s.more && s.head.Key == key }
