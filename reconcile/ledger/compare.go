package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Compare merges the two streams, both in ascending byte order of their keys, and reports each difference in that
// order. It holds one entry of each side at a time. When a stream fails or is out of order, when report returns an
// error, or when the context ends, it ends early, with the counts up to the last key that both sides have passed.
//
// There is no window, so no entry is at an edge. The findings have the IDs of a comparison without a name.
func Compare(
	ctx context.Context, provider, local iter.Seq2[Entry, error], report func(Finding) error,
) (Summary, error) {
	m := merger{report: report}
	err := m.merge(ctx, provider, local)
	return m.done.Counts, err
}

// cursor is the progress of a merge: both sides are past all keys up to After, with these counts.
type cursor struct {
	After  []byte
	Counts Summary
}

// merger compares two streams key by key.
type merger struct {
	comparison string
	window     *Window // nil if there are no edges
	grace      time.Duration
	report     func(Finding) error
	// save is called after saveEvery entries, when a key is finished; it may be nil.
	save      func() error
	saveEvery int64

	provider, local *stream
	counts          Summary
	// done is the state at the last key that both sides have passed. A merge must not continue between two entries of one
	// key: a duplicate would then be taken for the first.
	done     cursor
	lastSave int64
}

// merge continues after the cursor until both streams are at their end.
func (m *merger) merge(ctx context.Context, provider, local iter.Seq2[Entry, error]) error {
	var stopProvider, stopLocal func()
	after := string(m.done.After)
	m.provider, stopProvider = newStream(SideProvider, provider, after)
	defer stopProvider()
	m.local, stopLocal = newStream(SideLocal, local, after)
	defer stopLocal()
	m.counts = m.done.Counts
	m.lastSave = m.entries()
	for _, s := range []*stream{m.provider, m.local} {
		if err := s.advance(); err != nil {
			return err
		}
	}
	for m.provider.more || m.local.more {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.oneKey(); err != nil {
			return err
		}
	}
	return nil
}

// oneKey compares the smallest key of both sides.
func (m *merger) oneKey() error {
	key := m.provider.head.Key
	if !m.provider.more || m.local.more && m.local.head.Key < key {
		key = m.local.head.Key
	}
	provider, there, err := m.take(m.provider, key, &m.counts.Provider)
	if err != nil {
		return err
	}
	local, here, err := m.take(m.local, key, &m.counts.Local)
	if err != nil {
		return err
	}
	switch {
	case !here:
		err = m.oneSided(Finding{Kind: KindMissingHere, Side: SideProvider, Key: key, Provider: provider}, provider.At)
	case !there:
		err = m.oneSided(Finding{Kind: KindMissingThere, Side: SideLocal, Key: key, Local: local}, local.At)
	case provider.Value != local.Value:
		err = m.found(Finding{Kind: KindDiffers, Key: key, Provider: provider, Local: local})
	default:
		m.counts.Matched++
	}
	if err != nil {
		return err
	}
	return m.finish(key)
}

// take returns the first entry of the key, if the stream has one, and moves the stream past the last: the others are
// duplicates.
func (m *merger) take(s *stream, key string, count *int64) (first Entry, has bool, err error) {
	if !s.at(key) {
		return Entry{}, false, nil
	}
	first = s.head
	for ordinal := 2; ; ordinal++ {
		*count++
		if err := s.advance(); err != nil {
			return first, true, err
		}
		if !s.at(key) {
			return first, true, nil
		}
		f := Finding{Kind: KindDuplicate, Side: s.side, Key: key, Ordinal: ordinal}
		if s.side == SideProvider {
			f.Provider = s.head
		} else {
			f.Local = s.head
		}
		if err := m.found(f); err != nil {
			return first, true, err
		}
	}
}

// oneSided reports an entry that only one side has, unless the other side may have it outside of the window.
func (m *merger) oneSided(f Finding, at time.Time) error {
	if m.window != nil && m.window.edge(at, m.grace) {
		m.counts.AtEdge++
		return nil
	}
	return m.found(f)
}

func (m *merger) found(f Finding) error {
	f.ID, f.Run = findingID(m.comparison, &f), m.counts.Run
	m.counts.add(f.Kind)
	return m.report(f)
}

// finish moves the cursor past a key.
func (m *merger) finish(key string) error {
	m.done.After = append(m.done.After[:0], key...)
	m.done.Counts = m.counts
	if m.save == nil || m.entries()-m.lastSave < m.saveEvery {
		return nil
	}
	m.lastSave = m.entries()
	return m.save()
}

// entries returns the number of entries read from both sides.
func (m *merger) entries() int64 { return m.counts.Provider + m.counts.Local }

// ErrOrder is returned when a source does not keep the order of keys. The error is an [*OrderError].
var ErrOrder = errors.New("ledger: entries out of order")

// errNoKey is returned for an entry that nothing can be compared with.
var errNoKey = errors.New("an entry has no key")

// OrderError reports where a source left the order. Earlier findings may be wrong, because missing entries may follow
// later: compare again once the source is in order.
type OrderError struct {
	// Side is the source.
	Side Side
	// Before is the key that came first, or the key after which the source was to begin.
	Before string
	// Key is the key that came after it, and is smaller, or is the key that was to be left out.
	Key string
}

// Error describes the two keys.
func (e *OrderError) Error() string {
	return fmt.Sprintf("ledger: entries out of order: the %s source lists %q after %q", e.Side, e.Key, e.Before)
}

// Is makes errors.Is(err, ErrOrder) true.
func (e *OrderError) Is(target error) bool { return target == ErrOrder }

// stream is one side of the merge: its current entry, and what is needed to check the next one.
type stream struct {
	side  Side
	next  func() (Entry, error, bool)
	head  Entry // before the first entry, an entry with the key to begin after
	begun bool
	more  bool // there is a head
}

// newStream returns a stream before its first entry, and a function that ends it.
func newStream(side Side, entries iter.Seq2[Entry, error], after string) (*stream, func()) {
	next, stop := iter.Pull2(entries)
	return &stream{side: side, next: next, head: Entry{Key: after}}, stop
}

// advance reads the next entry.
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
