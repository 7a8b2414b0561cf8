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

// ErrNoStream is returned if no stream takes the subject of an event, or the servers of the stream cannot be reached.
// The event is retried.
var ErrNoStream = errors.New("nats: no stream takes the subject")

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// JetStream is the JetStream context to publish with. The caller closes its connection. Required.
	JetStream jetstream.JetStream
	// Subject returns the subject for each event. Its errors count as delivery failures and are retried, except errors
	// made with [outbox.Permanent]. Default: the topic of the message.
	Subject func(e *outbox.Event) (string, error)
}

// Publisher publishes events to JetStream. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct{ config PublisherConfig }

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher, or an error if its configuration is invalid.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	if config.JetStream == nil {
		return nil, errors.New("nats: PublisherConfig.JetStream is required")
	}
	if config.Subject == nil {
		config.Subject = func(e *outbox.Event) (string, error) { return e.Topic, nil }
	}
	return &Publisher{config}, nil
}

// Publish publishes an event and returns nil if a stream has it, from this or an earlier delivery. A context without a
// deadline gets the timeout of the JetStream context, which is five seconds by default.
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
	// An acknowledgement marked as duplicate also counts: the stream has the event from an earlier delivery.
	if _, err := p.config.JetStream.PublishMsg(ctx, message); err != nil {
		return judge(subject, err)
	}
	return nil
}

// checkSubject returns an error if a subject cannot be published to, because it has empty tokens, wildcards or white
// space.
func checkSubject(subject string) error {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n*>") {
			return fmt.Errorf("nats: %q is no subject to publish to", subject)
		}
	}
	return nil
}

// makeMessage returns an event as a message in the binary mode of the CloudEvents binding.
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

// reserved reports whether a message must not set a header. Reserved are the CloudEvents headers; the headers that are
// commands to the server, such as to purge a stream; and the headers by which clients recognise a status of the server,
// or an event in structured mode.
func reserved(name string) bool {
	switch name = strings.ToLower(name); name {
	case "status", "description", "content-type":
		return true
	default:
		return strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "nats-")
	}
}

// judge adds the subject and a hint to an error, and marks permanent errors: the message is larger than the server or
// the stream allows.
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
