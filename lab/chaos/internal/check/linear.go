package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

const (
	// orderTimeout bounds the search for an order of one key. A key comes down to a handful of steps, so that only a machine
	// that gives the search no processor for so long reaches it.
	orderTimeout = time.Minute
	// mostPayloads is how many payloads the model can tell apart under one key.
	mostPayloads = 64
)

// checkLinear is I11: there is an order of the answers, each somewhere between its sending and its return, that a
// single key could have given one after the other.
func checkLinear(o *operation, f *findings) {
	if len(o.attempts) == 0 || o.busted {
		return
	}
	h := newKeyHistory(o.attempts)
	if len(h.payloads) > mostPayloads {
		f.add("I11 undecided", o, "the key was used with %d payloads, more than the checker can tell apart", len(h.payloads))
		return
	}
	switch porcupine.CheckOperationsTimeout(keyModel, h.operations(), orderTimeout) {
	case porcupine.Illegal:
		f.add("I11", o, "no order explains the answers: %s", listAnswers(o.attempts))
	case porcupine.Unknown:
		f.add("I11 undecided", o, "no order was found in %v: %s", orderTimeout, listAnswers(o.attempts))
	}
}

// span is when a step may have happened.
type span struct{ from, to int64 }

// keyHistory is the history of one key, brought down to the steps that decide. Many clients that saw the same say no
// more than one who saw it at the tightest time, and the search takes exponential time in the number of steps.
type keyHistory struct {
	payloads []string
	// answers are the different definitive ones.
	answers []*history.Attempt
	steps   map[step]span
}

func newKeyHistory(attempts []*history.Attempt) *keyHistory {
	h := &keyHistory{steps: make(map[step]span)}
	for _, a := range attempts {
		h.add(a)
	}
	return h
}

func (h *keyHistory) add(a *history.Attempt) {
	c := classOf(a)
	payload := h.payload(a.Payload)
	if c != mismatch && c != rejected {
		h.arrives(payload, a)
	}
	switch c {
	case success, refusal:
		h.holdsFrom(step{kind: answered, payload: payload, answer: h.answer(a)}, a)
	case mismatch:
		h.holdsFrom(step{kind: mismatched, payload: payload}, a)
	case unknown:
		h.holdsFrom(step{kind: foundUnknown, payload: payload}, a)
		h.holdsUntil(step{kind: foundUnsettled}, a)
	case inProgress, becameUnknown:
		h.holdsUntil(step{kind: foundUnsettled}, a)
	}
}

// arrives notes that a request may take the key at any time from its sending on. It may do so without any answer, and
// later than its client was answered: a reservation can land after the client was told that the store is unavailable,
// and a resumer can finish what was in progress.
func (h *keyHistory) arrives(payload int, a *history.Attempt) {
	s := step{kind: arrived, payload: payload}
	if known, ok := h.steps[s]; ok && known.from <= a.Sent {
		return
	}
	h.steps[s] = span{a.Sent, a.Sent}
}

// holdsFrom notes an answer that stays true once it is: it must have become true before the first client got it.
func (h *keyHistory) holdsFrom(s step, a *history.Attempt) {
	seen := span{a.Sent, max(a.Sent, a.Returned)}
	if known, ok := h.steps[s]; ok {
		seen = span{min(seen.from, known.from), min(seen.to, known.to)}
	}
	h.steps[s] = seen
}

// holdsUntil notes an answer that never becomes true again once it is not: it must have been true when the last client
// that got it asked.
func (h *keyHistory) holdsUntil(s step, a *history.Attempt) {
	if known, ok := h.steps[s]; ok && known.from >= a.Sent {
		return
	}
	h.steps[s] = span{a.Sent, max(a.Sent, a.Returned)}
}

// payload numbers the payloads.
func (h *keyHistory) payload(payload string) int {
	n := slices.Index(h.payloads, payload)
	if n < 0 {
		n = len(h.payloads)
		h.payloads = append(h.payloads, payload)
	}
	return n
}

// answer numbers the definitive answers.
func (h *keyHistory) answer(a *history.Attempt) int {
	n := slices.IndexFunc(h.answers, func(b *history.Attempt) bool { return sameAnswer(a, b) })
	if n < 0 {
		n = len(h.answers)
		h.answers = append(h.answers, a)
	}
	return n
}

// operations are the steps for the search.
func (h *keyHistory) operations() []porcupine.Operation {
	operations := make([]porcupine.Operation, 0, len(h.steps))
	for s, when := range h.steps {
		operations = append(operations, porcupine.Operation{Input: s, Call: when.from, Return: when.to})
	}
	return operations
}

// listAnswers shows the attempts in the order of their sending, the first ones if there are many.
func listAnswers(attempts []*history.Attempt) string {
	const most = 12
	sent := slices.Clone(attempts)
	slices.SortFunc(sent, func(a, b *history.Attempt) int { return cmp.Compare(a.Sent, b.Sent) })
	var list []string
	for i, a := range sent {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(sent)-most))
			break
		}
		list = append(list, fmt.Sprintf("[%d, %d] %q: %s", a.Sent, a.Returned, a.Payload, describe(a)))
	}
	return strings.Join(list, "; ")
}
