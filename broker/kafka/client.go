package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/outbox"
)

const (
	// maxBuffered is how many bytes wait in the client while the brokers are away. Further deliveries wait until their
	// time is up.
	maxBuffered = 64 << 20
	// maxBatch has room for the largest payload and what is beside it. Brokers have a limit of their own, which is a
	// little more than 1 MiB after compression unless it is raised (message.max.bytes).
	maxBatch = outbox.MaxPayload + 64<<10
	// largeAlone is how large a payload is that exceeds the usual limit of brokers by itself, or nearly so.
	largeAlone = 1_000_000
)

// NewPublisherClient returns a client that is fit for a [Publisher]: an idempotent producer that waits for all in-sync
// replicas and sends at once, because an outbox has few records under way at a time. It takes payloads of up to
// [outbox.MaxPayload], and holds at most 64 MiB of records that are not answered yet. The options come on top, such as
// for TLS and SASL. The caller closes the client.
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

// NewConsumerClient returns a client that is fit for a [Consumer]: a member of the group that commits only when it is
// told to, and that keeps its partitions while it works on their records. The options come on top, such as for TLS and
// SASL. The caller closes the client, with CloseAllowingRebalance.
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

// newClient returns a client that passes the check: the options of the caller may have undone what it needs.
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

// checkPublisherClient refuses a client by which events could be lost, repeated out of order, or never sent.
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

// checkConsumerClient refuses a client by which records could be skipped, or offsets committed for partitions that have
// moved away.
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
