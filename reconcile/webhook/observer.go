package webhook

// ReceivedEvent reports a delivery that was answered to the [onceward.Observer].
type ReceivedEvent struct {
	Source string
	// Outcome is "kept", "duplicate", "refused" or "failed".
	Outcome string
	// Instance is the instance of the problem that was sent for a delivery that was not accepted; see [onceward.Problem].
	Instance string
	Err      error
}

// These are the outcomes of [ReceivedEvent].
const (
	outcomeKept      = "kept"
	outcomeDuplicate = "duplicate"
	outcomeRefused   = "refused"
	outcomeFailed    = "failed"
)
