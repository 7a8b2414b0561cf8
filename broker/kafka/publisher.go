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
	// Client is an idempotent producer that waits for all in-sync replicas, as by [NewPublisherClient]. It stays the
	// caller's to close. Required.
	Client *kgo.Client
	// Topic chooses the topic of Kafka for each event. Its error counts as one of the delivery, which is tried again
	// unless the error is made with [outbox.Permanent]. Default: the topic of the message.
	Topic func(e *outbox.Event) (string, error)
}

// Publisher writes events to Kafka. It is an [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	config  PublisherConfig
	pending pendingRecords
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher, or says what is wrong with its configuration: with another client, events could be
// lost, repeated out of order, or never sent.
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

// Publish writes an event, and returns nil when all in-sync replicas have it. If a record of the same event is still
// under way, since the time of an earlier delivery was up before the answer, it waits for that one.
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

// makeRecord writes an event as a record, by the binary mode of the binding. The record's timestamp is left to be that
// of the sending: by the event's own time, which is in ce_time, a dead letter that is replayed could be too old for the
// topic.
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

// reserved reports whether a header would be taken for one of the event's attributes. Some receivers ignore the case.
func reserved(name string) bool {
	name = strings.ToLower(name)
	return name == "content-type" || strings.HasPrefix(name, "ce_")
}

// hopeless are the answers by which Kafka refuses this very record. What an operator repairs, such as a topic that is
// missing or a right that was not granted, is not among them.
var hopeless = []*kerr.Error{
	kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException, kerr.UnsupportedForMessageFormat,
}

// tooLarge are the answers about a batch, which may hold further records.
var tooLarge = []*kerr.Error{kerr.MessageTooLarge, kerr.RecordListTooLarge}

// judge marks errors after which to try again would not help. A small event that was in a batch that is too large is
// not to blame: the client does not divide batches, so it is tried again, by chance in another one.
func judge(topic string, e *outbox.Event, err error) error {
	is := func(answer *kerr.Error) bool { return errors.Is(err, answer) }
	wrapped := fmt.Errorf("kafka: topic %s: %w", topic, err)
	if slices.ContainsFunc(hopeless, is) || len(e.Data) >= largeAlone && slices.ContainsFunc(tooLarge, is) {
		return outbox.Permanent(wrapped)
	}
	return wrapped
}
