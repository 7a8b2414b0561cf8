package natspub

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/outbox"
)

// ErrNoStream is returned when no stream takes the subject of an event, or its servers cannot be reached. The event is tried
// again.
var ErrNoStream = errors.New("natspub: no stream takes the subject")

// Config configures a [Publisher].
type Config struct {
	// Subject chooses the subject for each event. Its error counts as one of the delivery, which is tried again unless the
	// error is made with [outbox.Permanent]. Default: the topic of the message.
	Subject func(e *outbox.Event) (string, error)
}

// Publisher publishes events to JetStream. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	js      jetstream.JetStream
	subject func(e *outbox.Event) (string, error)
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a publisher that uses the connection of js, which stays the caller's to close.
func New(js jetstream.JetStream, config Config) (*Publisher, error) {
	if js == nil {
		return nil, errors.New("natspub: there is no JetStream")
	}
	if config.Subject == nil {
		config.Subject = func(e *outbox.Event) (string, error) { return e.Topic, nil }
	}
	return &Publisher{js: js, subject: config.Subject}, nil
}

// Publish publishes an event, and returns nil when a stream has it, now or since an earlier delivery. A context without a
// deadline gets that of the JetStream, which is five seconds unless it was made otherwise.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	subject, err := p.subject(e)
	if err != nil {
		return fmt.Errorf("natspub: no subject for event %s: %w", e.ID, err)
	}
	if err := checkSubject(subject); err != nil {
		return outbox.Permanent(err)
	}
	message, err := makeMessage(subject, e)
	if err != nil {
		return outbox.Permanent(err)
	}
	// An acknowledgement that says "duplicate" is one as well: the stream has the event from an earlier delivery.
	if _, err := p.js.PublishMsg(ctx, message); err != nil {
		return judge(subject, err)
	}
	return nil
}

// checkSubject refuses what is no subject to publish to: empty parts, wildcards and white space.
func checkSubject(subject string) error {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n*>") {
			return fmt.Errorf("natspub: %q is no subject to publish to", subject)
		}
	}
	return nil
}

// judge says what an error means, and marks those after which to try again would not help: the message is larger than the
// server or the stream takes.
func judge(subject string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w %s: create one, or extend the subjects of one", ErrNoStream, subject)
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return outbox.Permanent(fmt.Errorf("natspub: subject %s: %w", subject, err))
	default:
		return fmt.Errorf("natspub: subject %s: %w", subject, err)
	}
}
