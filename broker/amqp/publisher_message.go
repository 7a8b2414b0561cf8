package amqp

import (
	"fmt"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/outbox"
)

const (
	// attributePrefix is the prefix of each header that holds a CloudEvents attribute.
	attributePrefix = "cloudEvents:"
	// publishHeader is the header that numbers the publishings. All publishings of one event have the same message-id.
	publishHeader = "onceward-publish"
	// maxShort is the longest name or key in AMQP, in bytes. The client closes the connection if one is longer.
	maxShort = 255
)

// route is the destination of a message.
type route struct{ exchange, key string }

// route returns the destination that the configuration chooses for an event.
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

// makeMessage returns an event as a message in the binary mode of the CloudEvents binding.
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

// reserved reports whether a message must not set a header. Reserved are the CloudEvents headers, in both spellings;
// the headers by which the broker routes further copies; and the headers that count deliveries for a consumer.
func reserved(name string) bool {
	switch name = strings.ToLower(name); name {
	case publishHeader, "cc", "bcc", "x-death", "x-delivery-count":
		return true
	default:
		return strings.HasPrefix(name, "cloudevents:") || strings.HasPrefix(name, "cloudevents_")
	}
}
