package outbox

import (
	"context"
	"time"
)

// Event is a message in its published form, with the attributes of CloudEvents 1.0.
type Event struct {
	// ID, Source, Type, Subject, Time and ContentType are the attributes
	// of CloudEvents. Consumers recognise a repeated event by its ID.
	ID          string
	Source      string
	Type        string
	Subject     string
	Time        time.Time
	ContentType string
	// Data is the payload.
	Data []byte

	// Topic is the topic of the message.
	Topic string
	// PartitionKey is the same for all messages of an aggregate, which
	// must stay in order. It is empty if there is no order to keep.
	PartitionKey string
	// IdempotencyKey is the downstream key, the same for each delivery of the message.
	IdempotencyKey string
	// Headers are the headers of the message.
	Headers map[string]string
}

// Attribute is one attribute of CloudEvents as text.
type Attribute struct{ Name, Value string }

// Attributes returns the attributes under their CloudEvents names, except
// datacontenttype, for which each protocol has its own place. Empty attributes are left
// out. The extensions are partitionkey, which CloudEvents documents, and idempotencykey.
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

// Publisher sends events to a broker or a receiver. Publish returns nil only when the broker
// or the receiver has confirmed that it has stored the event. Many goroutines call it at the
// same time, but for one aggregate it is called only after the previous event was confirmed.
type Publisher interface {
	Publish(ctx context.Context, e *Event) error
}

// Publish returns a [Handler] that publishes messages with p.
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
