package ledger

import (
	"context"
	"iter"
	"time"
)

// Compare merges the two streams, both in ascending byte order of their keys, and reports each difference in that
// order. It holds one entry of each side at a time. It ends early, with what it had counted up to the last key that
// both sides were done with, when a stream fails or is out of order, when report returns an error, or when the context
// ends.
//
// There is no window, so nothing is at an edge. The findings have IDs as of a comparison without a name.
func Compare(ctx context.Context, provider, local iter.Seq2[Entry, error], report func(Finding) error) (Summary, error) {
	m := merger{report: report}
	err := m.merge(ctx, provider, local)
	return m.done.Counts, err
}

// cursor is how far a merge has come: both sides are done with all keys up to After, and that is what they came to.
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
	// save is told now and then that a key is done with, after saveEvery entries; it may be nil.
	save      func() error
	saveEvery int64

	provider, local *stream
	counts          Summary
	// done is as of the last key that both sides are done with. Nothing may go on from between two entries of one key:
	// a duplicate would then be taken for the first.
	done     cursor
	lastSave int64
}

// merge goes on behind the cursor until both streams are at their end.
func (m *merger) merge(ctx context.Context, provider, local iter.Seq2[Entry, error]) error {
	var stopProvider, stopLocal func()
	after := string(m.done.After)
	m.provider, stopProvider = newStream(Provider, provider, after)
	defer stopProvider()
	m.local, stopLocal = newStream(Local, local, after)
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

// oneKey compares the smallest key that there is, and is done with it.
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
		err = m.oneSided(Finding{Kind: MissingHere, Side: Provider, Key: key, Provider: provider}, provider.At)
	case !there:
		err = m.oneSided(Finding{Kind: MissingThere, Side: Local, Key: key, Local: local}, local.At)
	case provider.Value != local.Value:
		err = m.found(Finding{Kind: Differs, Key: key, Provider: provider, Local: local})
	default:
		m.counts.Matched++
	}
	if err != nil {
		return err
	}
	return m.finish(key)
}

// take returns the first entry of the key, if the stream has one, and leaves the stream behind the last: those between
// are duplicates.
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
		f := Finding{Kind: Duplicate, Side: s.side, Key: key, Ordinal: ordinal}
		if s.side == Provider {
			f.Provider = s.head
		} else {
			f.Local = s.head
		}
		if err := m.found(f); err != nil {
			return first, true, err
		}
	}
}

// oneSided reports what only one side has, unless it lies where the other side may have it outside of the window.
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

// finish moves the cursor behind a key.
func (m *merger) finish(key string) error {
	m.done.After = append(m.done.After[:0], key...)
	m.done.Counts = m.counts
	if m.save == nil || m.entries()-m.lastSave < m.saveEvery {
		return nil
	}
	m.lastSave = m.entries()
	return m.save()
}

// entries counts what was read from both sides.
func (m *merger) entries() int64 { return m.counts.Provider + m.counts.Local }
