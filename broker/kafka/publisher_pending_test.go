package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/outbox"
)

// The client gives up a record that it has not sent when the time of its delivery is up. The next delivery, which waits
// for it, is not told that, but publishes it again.
func TestGivenUpRecordsArePublishedAgain(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.SeedTopics(1, "charges"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := NewPublisherClient(cluster.ListenAddrs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	p, err := NewPublisher(PublisherConfig{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	first := identity{topic: "charges", source: "shop", id: "a"}
	pending, _ := p.pending.join(ended, first)
	published := make(chan error, 1)
	go func() { published <- p.Publish(t.Context(), &outbox.Event{Topic: "charges", Source: "shop", ID: "a"}) }()
	time.Sleep(20 * time.Millisecond) // nothing tells that it waits; if it does not yet, the test is only less strict
	if n := cluster.PartitionInfo("charges", 0).HighWatermark; n != 0 {
		t.Errorf("%d records while one is pending", n)
	}
	p.pending.answer(first, pending, context.Canceled)
	if err := <-published; err != nil {
		t.Error(err)
	}
	if n := cluster.PartitionInfo("charges", 0).HighWatermark; n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}
