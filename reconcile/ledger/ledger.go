// Package ledger compares a provider's list of effects with the local one, over a window of time, and reports effects
// that are on one side only, differ, or are listed twice.
//
// [Compare] is the comparison itself: two streams in the order of their keys are merged, so that its memory does not
// grow with their length. A [Comparer] does this for one window after the other, daily by default, each by one node and
// once. It keeps its progress in the store: no window is lost because of failures, restarts and outages, and an
// interrupted one is continued where it stopped.
//
// Findings are reported at least once. If a process dies between a report and the next recovery point, some are
// reported again, with the same [Finding.ID]; keep one finding for each ID.
package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"time"
)

// Entry is one effect in a ledger.
type Entry struct {
	// Key identifies the effect on both sides, such as the provider's id or the downstream key. It is not empty.
	Key string
	// Value is what must be equal on both sides, in one notation: amount, currency and status in one string, or a digest
	// of them. It is compared byte for byte.
	Value string
	// At is when the effect happened, by the clock of its side. It decides whether the entry is at the edge of a window.
	// The zero time is at no edge.
	At time.Time
	// Note is for people who read a finding. It is not compared.
	Note string
}

// Source lists the entries of one side in the window, in ascending byte order of their keys, from the first key that is
// larger than after; an empty after is before all keys. The same key twice is a finding, and a smaller key after a
// larger key is an [OrderError].
//
// Entries with equal keys should be in a stable order, such as by time: the first is compared, the others are
// duplicates. An entry that the source yields together with an error is ignored, and no further entry is read.
type Source func(ctx context.Context, w Window, after string) iter.Seq2[Entry, error]

// Window is the span of time of a run: from From, and before To.
type Window struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// String returns both ends, in UTC: a window has the same name on all nodes.
func (w Window) String() string {
	return w.From.UTC().Format(time.RFC3339Nano) + "/" + w.To.UTC().Format(time.RFC3339Nano)
}

// edge reports whether an entry of that time may be on one side only because the two sides do not agree about its time.
// The inner parts of windows that overlap by twice the grace are adjacent, so that no entry is at the edge of all
// windows.
func (w Window) edge(at time.Time, grace time.Duration) bool {
	return !at.IsZero() && (at.Before(w.From.Add(grace)) || !at.Before(w.To.Add(-grace)))
}

// Kind is the kind of a finding.
type Kind string

// These are the kinds of findings.
const (
	// KindMissingHere is an effect that the provider lists and the local ledger does not.
	KindMissingHere Kind = "missing here"
	// KindMissingThere is an effect that the local ledger lists and the provider does not.
	KindMissingThere Kind = "missing there"
	// KindDiffers is an effect that both list with different values.
	KindDiffers Kind = "differs"
	// KindDuplicate is an effect that one side lists more than once. Each entry beyond the first is a finding.
	KindDuplicate Kind = "duplicate"
)

// Side is one of the two ledgers.
type Side string

// These are the sides of a comparison.
const (
	// SideProvider is the ledger of the other system.
	SideProvider Side = "provider"
	// SideLocal is our own ledger.
	SideLocal Side = "local"
)

// Finding is one difference.
type Finding struct {
	// ID identifies the difference by the name of the comparison, the kind, the side, the key and the ordinal. It is the
	// same whenever it is reported again: by an attempt that continues, or by the next run if the windows overlap.
	ID string
	// Run names the run that found it: the comparison and the window.
	Run  string
	Kind Kind
	// Side is the side that has the entry, or has it too often. It is empty if both have it.
	Side Side
	Key  string
	// Ordinal is 2 for the first duplicate, 3 for the next one; zero for the other kinds.
	Ordinal int
	// Provider and Local are the compared entries, and are zero if there is none. For a duplicate it is the surplus entry.
	Provider Entry
	Local    Entry
}

// findingID hashes the identity of a finding, each part with its length, so that no two findings have the same
// encoding.
func findingID(comparison string, f *Finding) string {
	message := []byte("onceward ledger finding 1\x00")
	for _, part := range []string{comparison, string(f.Kind), string(f.Side), f.Key} {
		message = binary.AppendUvarint(message, uint64(len(part)))
		message = append(message, part...)
	}
	message = binary.AppendUvarint(message, uint64(f.Ordinal))
	sum := sha256.Sum256(message)
	return hex.EncodeToString(sum[:20])
}

// Summary is the result of a comparison.
type Summary struct {
	// Run names the run: the comparison and the window.
	Run string `json:"run"`
	// Provider and Local are the numbers of entries read.
	Provider int64 `json:"provider,omitempty"`
	Local    int64 `json:"local,omitempty"`
	// Matched is the number of keys that are on both sides with the same value.
	Matched int64 `json:"matched,omitempty"`
	// AtEdge is the number of keys that are on one side only, so near to an end of the window that the other side may have
	// them outside. They are no findings.
	AtEdge int64 `json:"at_edge,omitempty"`
	// The following are the findings, by kind.
	MissingHere  int64 `json:"missing_here,omitempty"`
	MissingThere int64 `json:"missing_there,omitempty"`
	Differs      int64 `json:"differs,omitempty"`
	Duplicates   int64 `json:"duplicates,omitempty"`
}

// Findings returns the number of findings of all kinds.
func (s *Summary) Findings() int64 {
	return s.MissingHere + s.MissingThere + s.Differs + s.Duplicates
}

func (s *Summary) add(kind Kind) {
	switch kind {
	case KindMissingHere:
		s.MissingHere++
	case KindMissingThere:
		s.MissingThere++
	case KindDiffers:
		s.Differs++
	case KindDuplicate:
		s.Duplicates++
	}
}
