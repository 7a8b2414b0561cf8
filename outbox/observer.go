package outbox

import (
	"time"

	"github.com/onceward/onceward/store"
)

// DeliveredEvent reports a delivery that has ended. It is sent to the [onceward.Observer].
type DeliveredEvent struct {
	// ID is the operation that added the message, or zero.
	store.ID
	// Topic and Message are the topic and the ID of the message.
	Topic   string
	Message string
	// Attempts is how often a delivery was attempted, including this time.
	Attempts int
	// Outcome is "done", "retry", "dead letter" or "lost".
	Outcome string
	Elapsed time.Duration
	// Err is the reason why the message is not done.
	Err error
}
