package outbox

import (
	"time"

	"github.com/onceward/onceward/store"
)

// DeliveredEvent is a delivery that has ended: it goes to the [onceward.Observer].
type DeliveredEvent struct {
	// ID is the operation that added the message, if one did.
	store.ID
	// Topic and Message are the topic of the message and its ID.
	Topic   string
	Message string
	// Attempts is how often it was tried, this time included.
	Attempts int
	// Outcome is "done", "retry", "dead letter" or "lost".
	Outcome string
	Elapsed time.Duration
	// Err is why it is not done.
	Err error
}
