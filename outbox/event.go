package outbox

import (
	"context"
	"time"
)

// Event is a message as it is published: with the attributes of CloudEvents 1.0.
type Event struct {
	// ID, Source, Type, Subject, Time and ContentType are the attributes of CloudEvents. Consumers recognise a
	// repetition by the ID.
	ID          string
	Source      string
	Type        string
	Subject     string
	Time        time.Time
	ContentType string
	// Data is the payload.
	Data []byte

	// Topic is that of the message.
	Topic string
	// PartitionKey is the same for all messages of an aggregate, which are to stay in order. It is empty if there is no
	// order to keep.
	PartitionKey string
	// IdempotencyKey is the downstream key, the same for each delivery of the message.
	IdempotencyKey string
	// Headers are those of the message.
	Headers map[string]string
}

// Attribute is one attribute of CloudEvents in the form of text.
type Attribute struct{ Name, Value string }

// Attributes returns the attributes under the names that CloudEvents gives them, but for datacontenttype, which each
// protocol has a place of its own for. Empty ones are left out. The extensions are partitionkey, which CloudEvents
// documents, and idempotencykey.
func (e *Event) Attributes() []Attribute {
	all := []Attribute{
		{"specversion", "1.0"},
		{"id", e.ID},
		{"source", e.Source},
		{"type", e.Type},
		{"subject", e.Subject},
		{"time", e.Time.UTC().Format(time.RFC3339Nano)},
		{"partitionkey", e.PartitionKey},
		{"idempotencykey", e.IdempotencyKey},
	}
	present := all[:0]
	for _, a := range all {
		if a.Value != "" {
			present = append(present, a)
		}
	}
	return present
}

// Publisher hands events to a broker or a receiver. Publish returns nil only when that has confirmed that it has the
// event for good; it is called by many goroutines at once, for one aggregate never before the event before has been
// confirmed.
type Publisher interface {
	Publish(ctx context.Context, e *Event) error
}

// Publish returns a [Handler] that publishes.
func Publish(p Publisher) Handler {
	return func(ctx context.Context, d *Delivery) (Result, error) {
		return Result{}, p.Publish(ctx, d.Event())
	}
}

// Event returns the entry as an event.
func (e *Entry) Event() *Event {
	event := &Event{
		ID: e.ID, Source: e.Source, Type: e.Type, Subject: e.Subject, Time: e.CreatedAt, ContentType: e.ContentType,
		Data: e.Payload, Topic: e.Topic, IdempotencyKey: e.DownstreamKey, Headers: e.Headers,
	}
	if e.Ordered() {
		event.PartitionKey = e.AggregateType + "/" + e.AggregateID
	}
	return event
}
