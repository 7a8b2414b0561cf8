package webhook

// ReceivedEvent is a delivery that was answered: it goes to the [onceward.Observer].
type ReceivedEvent struct {
	Source string
	// Outcome is "kept", "duplicate", "refused" or "failed".
	Outcome string
	// Instance is what the sender was told about a delivery that was not taken; see [onceward.Problem].
	Instance string
	Err      error
}

// The outcomes of [ReceivedEvent].
const (
	outcomeKept      = "kept"
	outcomeDuplicate = "duplicate"
	outcomeRefused   = "refused"
	outcomeFailed    = "failed"
)
