// Package ledger compares a provider's list of effects with the local one, over a window of time, and reports what is
// on one side only, what differs, and what is there twice.
//
// [Compare] is the comparison itself: two streams in the order of their keys are merged, so that its memory does not
// grow with their length. A [Comparer] does that for one window after the other, daily by default, each by one node and
// once. It keeps in the store how far it has come: no window is forgotten over failures, restarts and outages, and one
// that was interrupted is continued where it stopped.
//
// Findings are reported at least once. A process that dies between a report and the next recovery point leaves a few to
// be reported again; [Finding.ID] is the same then, and whoever keeps findings keeps one for each ID.
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
	// Value is what must be equal on both sides, written in one way: amount, currency and status in one string, or a
	// digest of them. Nothing but its bytes is compared.
	Value string
	// At is when the effect happened, by the clock of its side. It decides what lies at the edge of a window. The zero
	// time lies at no edge.
	At time.Time
	// Note is for people who look at a finding. It is not compared.
	Note string
}

// Source lists the entries of one side that lie in the window, in ascending byte order of their keys, from the first
// key that is larger than after; an empty one is before all keys. The same key twice is a finding, a smaller key after
// a larger one is an [OrderError].
//
// Equal keys should come in an order of their own, such as by time: the first is compared, the others are duplicates.
// What the source yields together with an error is ignored, and nothing is asked for after it.
type Source func(ctx context.Context, w Window, after string) iter.Seq2[Entry, error]

// Window is the span of time that a run looks at: from From on, and before To.
type Window struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// String returns both ends, in UTC: the same window has one name on all nodes.
func (w Window) String() string {
	return w.From.UTC().Format(time.RFC3339Nano) + "/" + w.To.UTC().Format(time.RFC3339Nano)
}

// edge reports whether an entry of that time may be on one side only because the two sides do not agree about when it
// was. The inner parts of windows that overlap by twice the grace lie side by side, so that no entry is at the edge of
// all.
func (w Window) edge(at time.Time, grace time.Duration) bool {
	return !at.IsZero() && (at.Before(w.From.Add(grace)) || !at.Before(w.To.Add(-grace)))
}

// Kind says what is wrong.
type Kind string

// The kinds of findings.
const (
	// MissingHere is an effect that the provider lists and the local ledger does not.
	MissingHere Kind = "missing here"
	// MissingThere is an effect that the local ledger lists and the provider does not.
	MissingThere Kind = "missing there"
	// Differs is an effect that both list with different values.
	Differs Kind = "differs"
	// Duplicate is an effect that one side lists more than once. Each entry beyond the first is a finding.
	Duplicate Kind = "duplicate"
)

// Side is one of the two ledgers.
type Side string

// The sides of a comparison.
const (
	// Provider is the ledger of the other system.
	Provider Side = "provider"
	// Local is our own ledger.
	Local Side = "local"
)

// Finding is one difference.
type Finding struct {
	// ID identifies the difference by the name of the comparison, the kind, the side, the key and the ordinal. It is
	// the same whenever it is reported again: by an attempt that goes on, or by the next run where the windows overlap.
	ID string
	// Run names the run that found it: the comparison and the window.
	Run  string
	Kind Kind
	// Side is the one that has the entry, or has it too often. It is empty if both have it.
	Side Side
	Key  string
	// Ordinal is 2 for the first duplicate, 3 for the next one; zero for the other kinds.
	Ordinal int
	// Provider and Local are the entries that were compared, and are zero where there is none. For a duplicate it is
	// the one entry that is too many.
	Provider Entry
	Local    Entry
}

// findingID hashes what a finding is, each part with its length, so that no two findings read the same.
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

// Summary is what a comparison came to.
type Summary struct {
	// Run names the run: the comparison and the window.
	Run string `json:"run"`
	// Provider and Local count the entries that were read.
	Provider int64 `json:"provider,omitempty"`
	Local    int64 `json:"local,omitempty"`
	// Matched counts the keys that are on both sides with the same value.
	Matched int64 `json:"matched,omitempty"`
	// AtEdge counts the keys that are on one side only, so near to an end of the window that the other side may have
	// them outside. They are no findings.
	AtEdge int64 `json:"at_edge,omitempty"`
	// The findings, by kind.
	MissingHere  int64 `json:"missing_here,omitempty"`
	MissingThere int64 `json:"missing_there,omitempty"`
	Differs      int64 `json:"differs,omitempty"`
	Duplicates   int64 `json:"duplicates,omitempty"`
}

// Findings counts the findings of all kinds.
func (s *Summary) Findings() int64 {
	return s.MissingHere + s.MissingThere + s.Differs + s.Duplicates
}

func (s *Summary) add(kind Kind) {
	switch kind {
	case MissingHere:
		s.MissingHere++
	case MissingThere:
		s.MissingThere++
	case Differs:
		s.Differs++
	case Duplicate:
		s.Duplicates++
	}
}
