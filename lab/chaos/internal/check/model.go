package check

import "github.com/anishathalye/porcupine"

// stepKind is what a client learned about a key.
type stepKind uint8

const (
	// arrived is no answer: from here on a request with the payload may take the key, whatever its client was told.
	arrived stepKind = iota
	// answered is a definitive answer.
	answered
	// mismatched says that another payload has the key.
	mismatched
	// foundUnknown says that this payload has the key, and that its outcome is open.
	foundUnknown
	// foundUnsettled says that no definitive answer exists.
	foundUnsettled
)

// step is something that a client learned. It is comparable, so that equal ones can be joined.
type step struct {
	kind    stepKind
	payload int
	// answer is the number of a definitive answer.
	answer int
}

// keyState is the state of a key. Only what clients can tell apart is in it: an operation that was settled, but whose
// answer no client has seen yet, is still open.
type keyState struct {
	// arrived has a bit for each payload that may take the key.
	arrived uint64
	hold    hold
	// payload is the one that has the key.
	payload int
	answer  int
}

// hold says how much is decided about a key.
type hold uint8

const (
	// free is a key without a record, also while a transaction is in flight.
	free hold = iota
	// held is a key that belongs to a payload for good: a record only ever executes again for the same request.
	held
	// done is a key with a definitive answer.
	done
)

// keyModel is the model of one key. It is not deterministic: a mismatch tells that another payload has the key, but not
// which.
var keyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, _ any) []any { return next(state.(keyState), input.(step)) },
}).ToModel()

// next returns the states that the key may be in after the step, none if the step is impossible.
func next(k keyState, s step) []any {
	switch s.kind {
	case arrived:
		k.arrived |= 1 << s.payload
		return []any{k}
	case answered:
		return afterAnswer(k, s)
	case mismatched:
		return afterMismatch(k, s)
	case foundUnknown:
		if k.hold == free || k.hold == held && k.payload == s.payload {
			k.hold, k.payload = held, s.payload
			return []any{k}
		}
	case foundUnsettled:
		if k.hold != done {
			return []any{k}
		}
	}
	return nil
}

// afterAnswer settles the key, or finds it settled in the same way.
func afterAnswer(k keyState, s step) []any {
	if k.hold != free && k.payload != s.payload || k.hold == done && k.answer != s.answer {
		return nil
	}
	k.hold, k.payload, k.answer = done, s.payload, s.answer
	return []any{k}
}

// afterMismatch finds the key with another payload, or with any of those that may have taken it in the meantime.
func afterMismatch(k keyState, s step) []any {
	if k.hold != free {
		if k.payload == s.payload {
			return nil
		}
		return []any{k}
	}
	var states []any
	for payload := range mostPayloads {
		if payload != s.payload && k.arrived&(1<<payload) != 0 {
			k.hold, k.payload = held, payload
			states = append(states, k)
		}
	}
	return states
}
