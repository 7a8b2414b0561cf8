package sqltx

import "github.com/onceward/onceward/store"

// CodesPerState is the distance between the codes of two states in the column state. A code is ten times the state,
// plus one for a record that the usual background worker leaves to another worker.
const CodesPerState = 10

// The codes of the column state.
const (
	CodeInProgress = int(store.StateInProgress) * CodesPerState
	CodeCompleted  = int(store.StateCompleted) * CodesPerState
	CodeRetryable  = int(store.StateRetryable) * CodesPerState
	CodeUnknown    = int(store.StateUnknown) * CodesPerState
	CodeDeadLetter = CodeUnknown + 1
	CodeExpired    = int(store.StateExpired) * CodesPerState
)

// StateCode returns the code of a record for the column state.
func StateCode(rec *store.Record) int {
	code := int(rec.State) * CodesPerState
	if rec.State == store.StateInProgress && rec.OnLost == store.LostResume || rec.DeadLetter {
		code++
	}
	return code
}
