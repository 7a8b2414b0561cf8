package check

import (
	"slices"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// The rest of a story finds the facts of an operation, to spoil or to remove them.

// attemptOf returns the n-th attempt of an operation in scope "s".
func (s *story) attemptOf(key string, n int) *history.Attempt {
	for i := range s.Attempts {
		a := &s.Attempts[i]
		if a.Scope == "s" && a.Key == key {
			if n == 0 {
				return a
			}
			n--
		}
	}
	panic("no such attempt: " + key)
}

// writeOf returns the n-th write of an operation.
func (s *story) writeOf(key string, n int) *history.Write {
	for i := range s.Writes {
		if s.Writes[i].Key == key {
			if n == 0 {
				return &s.Writes[i]
			}
			n--
		}
	}
	panic("no such write: " + key)
}

// late adds a write with the first token of an operation that has a later one.
func (s *story) late(key, call, digest string) {
	s.write(history.Write{Call: call, Key: key, Attempt: 1, Accepted: true, Digest: digest})
}

// transactTwins adds two transactions of one token, on two nodes: the second one is of the reservation and the answer
// that are given, and overlaps the first one by a time, if that is not below zero.
func (s *story) transactTwins(nonce, digest string, overlap int64) {
	s.write(history.Write{
		Call: history.CallTransact, Key: "booked", Attempt: 9, Nonce: "n1", Digest: "d-B1", Granted: true, Accepted: true,
	})
	twin := s.Writes[len(s.Writes)-1]
	length := twin.Ended - twin.Began
	twin.Node, twin.Nonce, twin.Digest = "m", nonce, digest
	twin.Began = twin.Ended - overlap
	twin.Ended = twin.Began + length + max(overlap, 0)
	s.Writes = append(s.Writes, twin)
}

// giveUp adds an operation whose client left after two attempts without an answer.
func (s *story) giveUp(kind, key string) {
	for range 2 {
		s.ask(history.Attempt{Kind: kind, Key: key, Reference: key + "-r", Lost: "timeout"})
	}
}

func (s *story) recordOf(key string) *history.Record {
	return &s.Records[slices.IndexFunc(s.Records, func(r history.Record) bool { return r.Key == key })]
}

func (s *story) dropRecord(key string) {
	s.Records = slices.DeleteFunc(s.Records, func(r history.Record) bool { return r.Key == key })
}

func (s *story) effectOf(key string) *history.Effect {
	return &s.Effects[slices.IndexFunc(s.Effects, func(e history.Effect) bool { return e.Key == key })]
}

func (s *story) dropEffect(key string) {
	s.Effects = slices.DeleteFunc(s.Effects, func(e history.Effect) bool { return e.Key == key })
}

func (s *story) rowOf(key string) *history.Row {
	return &s.Rows[slices.IndexFunc(s.Rows, func(r history.Row) bool { return r.Key == key })]
}

func (s *story) dropRow(key string) {
	s.Rows = slices.DeleteFunc(s.Rows, func(r history.Row) bool { return r.Key == key })
}
