package kafkasub_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/inbox/kafkasub"
)

// O5: events that come twice are applied once, those of a partition in order, and the offsets follow.
func TestAppliesEachEventOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const events = 10
	for p := range partitions {
		for _, id := range ids(p, 0, events) {
			b.produce(t, int32(p), id, id)
		}
	}
	run := start(t, b.consumer(t))
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, events)
}

// A consumer that starts again goes on where the last one has committed.
func TestGoesOnAfterRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for round := range 3 {
		for p := range partitions {
			b.produce(t, int32(p), ids(p, 5*round, 5*round+5)...)
		}
		c := b.consumer(t)
		c.MaxRecords = 3
		run := start(t, c)
		b.awaitCommitted(t)
		run.stop(t)
		c.Client.CloseAllowingRebalance()
	}
	b.expectOnce(t, 15)
}

// What is being applied when Run is to end is finished and committed, and nothing is begun after it.
func TestEndsGracefully(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.produce(t, 0, ids(0, 0, 3)...)
	c := b.consumer(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		close(begun)
		<-finish
		return apply(ctx, r)
	}
	run := start(t, c)
	<-begun
	run.cancel()
	close(finish)
	if err := run.wait(t); err != nil {
		t.Fatal(err)
	}
	b.awaitCommitted(t, 1)
	if got := b.applied(t); len(got) != 1 {
		t.Errorf("applied: %q", got)
	}
}

// A handler that does not come to an end is interrupted after the grace, and leaves no trace.
func TestGraceIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.produce(t, 0, "0-0")
	c := b.consumer(t)
	c.Grace = time.Millisecond
	begun := make(chan struct{})
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		if err := apply(ctx, r); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	run := start(t, c)
	<-begun
	run.stop(t)
	if got := b.applied(t); len(got) != 0 {
		t.Errorf("applied: %q", got)
	}
}

// A round that takes too long gives the rest of its records back, so that the group can rebalance.
func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for p := range partitions {
		b.produce(t, int32(p), ids(p, 0, 5)...)
	}
	c := b.consumer(t)
	c.MaxRound = 2 * time.Millisecond
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		time.Sleep(time.Millisecond) // a slow handler, of which a round has time for few
		return apply(ctx, r)
	}
	commits := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Observe: true, Count: -1})
	defer commits.Remove()
	run := start(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 5)
	if commits.Hits() < 2 {
		t.Error("all was done in one round")
	}
}

func TestEventIDByConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.produce(t, 0, "a:1", "a:2", "b:1")
	c := b.consumer(t)
	c.EventID = func(r *kgo.Record) (string, error) {
		id, _, _ := strings.Cut(string(r.Value), ":")
		return id, nil
	}
	run := start(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	if got := fmt.Sprint(b.applied(t)); got != "[a:1 b:1]" {
		t.Errorf("applied: %s", got)
	}
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	c := newBench(t).consumer(t)
	c.Client.CloseAllowingRebalance()
	if err := c.Run(t.Context()); !errors.Is(err, kgo.ErrClientClosed) {
		t.Error(err)
	}
}

func TestConsumersThatAreRefused(t *testing.T) {
	t.Parallel()
	seeds := kgo.SeedBrokers("127.0.0.1:1")
	topics := kgo.ConsumeTopics(topic)
	for name, options := range map[string][]kgo.Opt{
		"no group":         {seeds, topics},
		"commits":          {seeds, topics, kgo.ConsumerGroup(group), kgo.BlockRebalanceOnPoll()},
		"rebalances":       {seeds, topics, kgo.ConsumerGroup(group), kgo.DisableAutoCommit()},
		"all as it should": {seeds, topics, kgo.ConsumerGroup(group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll()},
	} {
		client, err := kgo.NewClient(options...)
		if err != nil {
			t.Fatal(err)
		}
		complete := kafkasub.Consumer{Client: client, Inbox: inbox.New(nil), Name: "mailer", Handle: apply}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := complete.Run(ended); (err == nil) != (name == "all as it should") {
			t.Errorf("%s: %v", name, err)
		}
		for field, change := range map[string]func(c *kafkasub.Consumer){
			"Client":   func(c *kafkasub.Consumer) { c.Client = nil },
			"Inbox":    func(c *kafkasub.Consumer) { c.Inbox = nil },
			"Name":     func(c *kafkasub.Consumer) { c.Name = "" },
			"length":   func(c *kafkasub.Consumer) { c.Name = strings.Repeat("x", 256) },
			"Handle":   func(c *kafkasub.Consumer) { c.Handle = nil },
			"negative": func(c *kafkasub.Consumer) { c.Grace = -1 },
		} {
			c := complete
			change(&c)
			if err := c.Run(ended); err == nil {
				t.Errorf("%s: accepted", field)
			}
		}
		client.CloseAllowingRebalance()
	}
	for _, open := range []func() (*kgo.Client, error){
		func() (*kgo.Client, error) { return kafkasub.Open(nil, group, []string{topic}) },
		func() (*kgo.Client, error) { return kafkasub.Open([]string{"127.0.0.1:1"}, group, nil) },
		func() (*kgo.Client, error) { return kafkasub.Open([]string{"127.0.0.1:1"}, "", []string{topic}) },
	} {
		if _, err := open(); err == nil {
			t.Error("opened")
		}
	}
}
