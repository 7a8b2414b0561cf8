package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/outbox"
)

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// Client is an idempotent producer that waits for all in-sync replicas, such as [NewPublisherClient] returns. The
	// caller closes it. Required.
	Client *kgo.Client
	// Topic returns the Kafka topic for each event. Its errors count as delivery failures and are retried, except
	// errors made with [outbox.Permanent]. Default: the topic of the message.
	Topic func(e *outbox.Event) (string, error)
}

// Publisher writes events to Kafka. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	config  PublisherConfig
	pending pendingRecords
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher, or an error if its configuration is invalid: with an unsuitable client, events
// could be lost, repeated out of order, or never sent.
func NewPublisher(config PublisherConfig) (*Publisher, error) {
	if config.Client == nil {
		return nil, errors.New("kafka: PublisherConfig.Client is required")
	}
	if err := checkPublisherClient(config.Client); err != nil {
		return nil, err
	}
	if config.Topic == nil {
		config.Topic = func(e *outbox.Event) (string, error) { return e.Topic, nil }
	}
	return &Publisher{config: config}, nil
}

// Publish writes an event and returns nil when all in-sync replicas have it. If a record of the same event is still in
// flight, because an earlier delivery ended before the answer, Publish waits for that record.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	topic, err := p.config.Topic(e)
	if err != nil {
		return fmt.Errorf("kafka: no topic for event %s: %w", e.ID, err)
	}
	if topic == "" {
		return outbox.Permanent(fmt.Errorf("kafka: event %s has no topic", e.ID))
	}
	record, err := makeRecord(topic, e)
	if err != nil {
		return outbox.Permanent(err)
	}
	if err := p.produce(ctx, identity{topic, e.Source, e.ID}, record); err != nil {
		return judge(topic, e, err)
	}
	return nil
}

// makeRecord returns an event as a record in the binary mode of the CloudEvents binding. The record's timestamp is the
// time of sending. The event's own time is in ce_time; as a timestamp, it could make a replayed dead letter too old for
// the topic.
func makeRecord(topic string, e *outbox.Event) (*kgo.Record, error) {
	record := &kgo.Record{Topic: topic, Value: e.Data}
	if e.PartitionKey != "" {
		record.Key = []byte(e.PartitionKey)
	}
	for _, a := range e.Attributes() {
		record.Headers = append(record.Headers, header("ce_"+a.Name, a.Value))
	}
	if e.ContentType != "" {
		record.Headers = append(record.Headers, header("content-type", e.ContentType))
	}
	for name, value := range e.Headers {
		if reserved(name) {
			return nil, fmt.Errorf("kafka: the message's header %q is reserved", name)
		}
		record.Headers = append(record.Headers, header(name, value))
	}
	return record, nil
}

func header(name, value string) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: []byte(value)}
}

// reserved reports whether a header could be mistaken for one of the event's attributes. Some receivers ignore the
// case.
func reserved(name string) bool {
	name = strings.ToLower(name)
	return name == "content-type" || strings.HasPrefix(name, "ce_")
}

// hopeless are the errors with which Kafka permanently refuses this record. Errors that an operator can repair, such as
// a missing topic or a missing permission, are not included.
var hopeless = []*kerr.Error{
	kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException, kerr.UnsupportedForMessageFormat,
}

// tooLarge are the errors about a batch, which may hold other records too.
var tooLarge = []*kerr.Error{kerr.MessageTooLarge, kerr.RecordListTooLarge}

// judge marks permanent errors. A small event in a batch that is too large is not at fault: the client does not split
// batches, so the event is retried, probably in another batch.
func judge(topic string, e *outbox.Event, err error) error {
	is := func(answer *kerr.Error) bool { return errors.Is(err, answer) }
	wrapped := fmt.Errorf("kafka: topic %s: %w", topic, err)
	if slices.ContainsFunc(hopeless, is) || len(e.Data) >= largeAlone && slices.ContainsFunc(tooLarge, is) {
		return outbox.Permanent(wrapped)
	}
	return wrapped
}
