package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/outbox"
)

const (
	// maxBuffered is how many bytes the client buffers while the brokers are unreachable. Further deliveries wait until
	// their deadline.
	maxBuffered = 64 << 20
	// maxBatch has room for the largest payload and its headers. Brokers have a limit of their own, which by default is
	// a little more than 1 MiB after compression (message.max.bytes).
	maxBatch = outbox.MaxPayload + 64<<10
	// largeAlone is the size of a payload that alone exceeds, or nearly exceeds, the default limit of brokers.
	largeAlone = 1_000_000
)

// NewPublisherClient returns a client for a [Publisher]: an idempotent producer that waits for all in-sync replicas and
// sends at once, because an outbox has few records in flight. It accepts payloads of up to [outbox.MaxPayload], and
// holds at most 64 MiB of unanswered records. The options are added to these settings, for example for TLS and SASL.
// The caller closes the client.
func NewPublisherClient(seeds []string, options ...kgo.Opt) (*kgo.Client, error) {
	if len(seeds) == 0 {
		return nil, errors.New("kafka: there is no broker to begin with")
	}
	all := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedBytes(maxBuffered),
		kgo.ProducerBatchMaxBytes(maxBatch),
	}
	return newClient(append(all, options...), checkPublisherClient)
}

// NewConsumerClient returns a client for a [Consumer]: a member of the group that does not commit automatically, and
// that keeps its partitions while it processes their records. The options are added to these settings, for example for
// TLS and SASL. The caller closes the client, with CloseAllowingRebalance.
func NewConsumerClient(seeds []string, group string, topics []string, options ...kgo.Opt) (*kgo.Client, error) {
	if len(seeds) == 0 || len(topics) == 0 {
		return nil, errors.New("kafka: there is no broker to begin with, or no topic")
	}
	all := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topics...),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
	return newClient(append(all, options...), checkConsumerClient)
}

// newClient returns a client that passes the check, because the caller's options may undo required settings.
func newClient(options []kgo.Opt, check func(*kgo.Client) error) (*kgo.Client, error) {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	if err := check(client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// checkPublisherClient returns an error if a client could lose events, repeat them out of order, or never send them.
func checkPublisherClient(client *kgo.Client) error {
	var wrong []error
	if client.OptValue(kgo.RequiredAcks) != kgo.AllISRAcks() {
		wrong = append(wrong, errors.New("kafka: the client does not wait for all in-sync replicas: "+
			"leave out kgo.RequiredAcks or set kgo.AllISRAcks"))
	}
	for _, option := range []struct {
		option any
		name   string
		why    string
	}{
		{kgo.DisableIdempotentWrite, "DisableIdempotentWrite", "its retries could repeat and reorder records"},
		{kgo.ManualFlushing, "ManualFlushing", "nothing would be sent"},
		{kgo.DefaultProduceTopicAlways, "DefaultProduceTopicAlways", "all events would go to one topic"},
	} {
		if set, _ := client.OptValue(option.option).(bool); set {
			wrong = append(wrong, fmt.Errorf("kafka: the client is made with kgo.%s: %s", option.name, option.why))
		}
	}
	if values := client.OptValues(kgo.TransactionalID); len(values) == 2 && values[1] == true {
		wrong = append(wrong, errors.New("kafka: the client is transactional, and a publisher begins no transactions"))
	}
	return errors.Join(wrong...)
}

// checkConsumerClient returns an error if a client could skip records, or commit offsets of partitions that it no
// longer owns.
func checkConsumerClient(client *kgo.Client) error {
	var wrong []error
	if group, _ := client.OptValue(kgo.ConsumerGroup).(string); group == "" {
		wrong = append(wrong, errors.New("kafka: the client is in no group: make it with kgo.ConsumerGroup"))
	}
	if disabled, _ := client.OptValue(kgo.DisableAutoCommit).(bool); !disabled {
		wrong = append(wrong, errors.New("kafka: the client commits by itself, also what was not applied: "+
			"make it with kgo.DisableAutoCommit"))
	}
	if blocks, _ := client.OptValue(kgo.BlockRebalanceOnPoll).(bool); !blocks {
		wrong = append(wrong, errors.New("kafka: partitions can move away while their records are worked on: "+
			"make the client with kgo.BlockRebalanceOnPoll"))
	}
	return errors.Join(wrong...)
}
