package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/internal/cloudevents"
	"github.com/onceward/onceward/outbox"
)

// ErrNoStream is returned when no stream takes the subject of an event, or its servers cannot be reached. The event is
// tried again.
var ErrNoStream = errors.New("nats: no stream takes the subject")

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// JetStream is on a connection that stays the caller's to close. Required.
	JetStream jetstream.JetStream
	// Subject chooses the subject for each event. Its error counts as one of the delivery, which is tried again unless
	// the error is made with [outbox.Permanent]. Default: the topic of the message.
	Subject func(e *outbox.Event) (string, error)
}

// Publisher publishes events to JetStream. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct{ config PublisherConfig }

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher, or says what is wrong with its configuration.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	if config.JetStream == nil {
		return nil, errors.New("nats: PublisherConfig.JetStream is required")
	}
	if config.Subject == nil {
		config.Subject = func(e *outbox.Event) (string, error) { return e.Topic, nil }
	}
	return &Publisher{config}, nil
}

// Publish publishes an event, and returns nil when a stream has it, now or since an earlier delivery. A context without
// a deadline gets that of the JetStream, which is five seconds unless it was made otherwise.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	subject, err := p.config.Subject(e)
	if err != nil {
		return fmt.Errorf("nats: no subject for event %s: %w", e.ID, err)
	}
	if err := checkSubject(subject); err != nil {
		return outbox.Permanent(err)
	}
	message, err := makeMessage(subject, e)
	if err != nil {
		return outbox.Permanent(err)
	}
	// An acknowledgement that says "duplicate" is one as well: the stream has the event from an earlier delivery.
	if _, err := p.config.JetStream.PublishMsg(ctx, message); err != nil {
		return judge(subject, err)
	}
	return nil
}

// checkSubject refuses what is no subject to publish to: empty parts, wildcards and white space.
func checkSubject(subject string) error {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n*>") {
			return fmt.Errorf("nats: %q is no subject to publish to", subject)
		}
	}
	return nil
}

// makeMessage writes an event as a message, by the binary mode of the binding.
func makeMessage(subject string, e *outbox.Event) (*natsgo.Msg, error) {
	message := &natsgo.Msg{Subject: subject, Data: e.Data, Header: natsgo.Header{}}
	message.Header.Set(jetstream.MsgIDHeader, e.ID)
	for _, a := range e.Attributes() {
		message.Header.Set("ce-"+a.Name, cloudevents.PercentEncode(a.Value))
	}
	if e.ContentType != "" {
		message.Header.Set("ce-datacontenttype", cloudevents.PercentEncode(e.ContentType))
	}
	for name, value := range e.Headers {
		if reserved(name) {
			return nil, fmt.Errorf("nats: the message's header %q is reserved", name)
		}
		message.Header.Set(name, value)
	}
	return message, nil
}

// reserved reports whether a header is not for a message to set: those of CloudEvents; those that are commands to the
// server, such as to purge a stream; and those by which clients tell a status of the server, or an event in structured
// mode.
func reserved(name string) bool {
	switch name = strings.ToLower(name); name {
	case "status", "description", "content-type":
		return true
	default:
		return strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "nats-")
	}
}

// judge says what an error means, and marks those after which to try again would not help: the message is larger than
// the server or the stream takes.
func judge(subject string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w %s: create one, or extend the subjects of one", ErrNoStream, subject)
	case errors.Is(err, natsgo.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return outbox.Permanent(fmt.Errorf("nats: subject %s: %w", subject, err))
	default:
		return fmt.Errorf("nats: subject %s: %w", subject, err)
	}
}
