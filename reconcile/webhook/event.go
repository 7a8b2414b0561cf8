package webhook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/onceward/onceward/store"
)

// Event is what the receiver has to know about a delivery. Every provider writes it in another place, so [Config] has a
// Parse that finds it.
type Event struct {
	// ID is the sender's id of the event: the same in every delivery of it, and never that of another event. It must be
	// taken from what the signature covers, otherwise anyone could make a recorded delivery new. It is required.
	ID string
	// Subject is what the event is about, as the reconciler will ask for it: a downstream key or the provider's own id.
	// It is required, because an event without one would be kept and never be found.
	Subject string
	// Scope is the one that the event is about, for [ScopeOfEvent]. Like the ID it must be taken from what the
	// signature covers.
	Scope string
	// At is when it happened by the sender's clock. If it is zero, the time of receipt stands in for it, and the order
	// is that of arrival.
	At time.Time
}

// ErrIgnored is what a Parse returns for an event that is none of our business, such as a kind that nobody here acts
// on. It is answered like a success, so that the sender does not send it again, and is not kept.
var ErrIgnored = errors.New("webhook: the event is of no interest")

// ParseJSON makes a Parse for senders of JSON: the body is decoded into a T, a struct with the few fields that matter,
// and find makes the [Event] of it. A body that is not one JSON value of that shape is refused.
func ParseJSON[T any](find func(header http.Header, payload T) (Event, error)) func(http.Header, []byte) (Event, error) {
	return func(header http.Header, body []byte) (Event, error) {
		var payload T
		if err := json.Unmarshal(body, &payload); err != nil {
			return Event{}, fmt.Errorf("webhook: the body cannot be decoded: %w", err)
		}
		return find(header, payload)
	}
}

// Latest returns the external event that counts, and false if there is none. The external events are of one source and
// about one subject, such as [store.ExternalEventKeeper] returns them. Deliveries come in any order: the one that
// happened last by the sender's clock counts, and an older one that comes later is ignored. Between two of the same
// time the greater event id decides. That says nothing about which came last, but every node decides alike; where it
// matters, ask the sender for the current state.
func Latest(events []store.ExternalEvent) (store.ExternalEvent, bool) {
	if len(events) == 0 {
		return store.ExternalEvent{}, false
	}
	return slices.MaxFunc(events, func(a, b store.ExternalEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.EventID, b.EventID))
	}), true
}
