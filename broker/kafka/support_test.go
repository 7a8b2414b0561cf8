package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// newCluster starts brokers in this process, with the topic "charges".
func newCluster(t *testing.T, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	usual := []kfake.Opt{kfake.NumBrokers(3), kfake.SeedTopics(4, "charges")}
	cluster, err := kfake.NewCluster(append(usual, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// newPublisher returns a publisher with a client of its own.
func newPublisher(
	t *testing.T, cluster *kfake.Cluster, config kafka.PublisherConfig, options ...kgo.Opt,
) *kafka.Publisher {
	t.Helper()
	options = append(options, kgo.MetadataMinAge(10*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 5 * time.Millisecond }))
	client, err := kafka.NewPublisherClient(cluster.ListenAddrs(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	config.Client = client
	p, err := kafka.NewPublisher(config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// event is number n about an aggregate.
func event(aggregate string, n int) *outbox.Event {
	return &outbox.Event{
		ID: fmt.Sprintf("%s-%d", aggregate, n), Source: "https://shop.example/payments", Type: "payment.created",
		Subject: "Euro € 5", Time: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), ContentType: "application/json",
		Data: []byte(`{"amount":5}`), Topic: "charges", PartitionKey: "payment/" + aggregate, IdempotencyKey: "k-5",
		Headers: map[string]string{"Tenant": "acme"},
	}
}

// read returns the first n records of a topic, with those of each partition in order.
func read(t *testing.T, cluster *kfake.Cluster, topic string, n int) []*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records, then %v", len(records), n, err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// written counts the records of a topic.
func written(cluster *kfake.Cluster, topic string) (n int64) {
	for _, partition := range cluster.PartitionInfos(topic) {
		n += partition.HighWatermark
	}
	return n
}

// headers returns a record's headers, and fails the test if one is there twice.
func headers(t *testing.T, record *kgo.Record) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, h := range record.Headers {
		if _, twice := all[h.Key]; twice {
			t.Errorf("header %s is there twice", h.Key)
		}
		all[h.Key] = string(h.Value)
	}
	return all
}
