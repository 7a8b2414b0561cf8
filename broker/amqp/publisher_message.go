package amqp

import (
	"fmt"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/outbox"
)

const (
	// attributePrefix begins the name of each header that holds an attribute of CloudEvents.
	attributePrefix = "cloudEvents:"
	// publishHeader tells the publishings of one event apart, which all have the same message-id.
	publishHeader = "onceward-publish"
	// maxShort is how long names and keys may be in AMQP. The client gives up the connection over a longer one.
	maxShort = 255
)

// route is where a message goes.
type route struct{ exchange, key string }

// route asks the configuration where an event goes.
func (p *Publisher) route(e *outbox.Event) (to route, err error) {
	if to.exchange, err = p.config.Exchange(e); err != nil {
		return to, fmt.Errorf("amqp: no exchange for event %s: %w", e.ID, err)
	}
	if to.key, err = p.config.RoutingKey(e); err != nil {
		return to, fmt.Errorf("amqp: no routing key for event %s: %w", e.ID, err)
	}
	if len(to.exchange) > maxShort || len(to.key) > maxShort {
		return to, outbox.Permanent(fmt.Errorf("amqp: exchange %q or routing key %q is longer than %d bytes",
			to.exchange, to.key, maxShort))
	}
	return to, nil
}

// makeMessage writes an event as a message, by the binary mode of the binding.
func makeMessage(e *outbox.Event) (amqp091.Publishing, error) {
	message := amqp091.Publishing{
		DeliveryMode: amqp091.Persistent,
		MessageId:    e.ID,
		ContentType:  e.ContentType,
		Body:         e.Data,
		Headers:      make(amqp091.Table),
	}
	if len(e.ID) > maxShort || len(e.ContentType) > maxShort {
		return message, fmt.Errorf("amqp: the ID or content type of event %q is longer than %d bytes", e.ID, maxShort)
	}
	for name, value := range e.Headers {
		if reserved(name) {
			return message, fmt.Errorf("amqp: the message's header %q is reserved", name)
		}
		if len(name) > maxShort {
			return message, fmt.Errorf("amqp: the name of the header %q is longer than %d bytes", name, maxShort)
		}
		message.Headers[name] = value
	}
	for _, a := range e.Attributes() {
		message.Headers[attributePrefix+a.Name] = a.Value
	}
	return message, nil
}

// reserved reports whether a header is not for a message to set: those of CloudEvents, in both spellings; those by
// which the broker routes further copies; and those that tell a consumer how often the broker has delivered.
func reserved(name string) bool {
	switch name = strings.ToLower(name); name {
	case publishHeader, "cc", "bcc", "x-death", "x-delivery-count":
		return true
	default:
		return strings.HasPrefix(name, "cloudevents:") || strings.HasPrefix(name, "cloudevents_")
	}
}
