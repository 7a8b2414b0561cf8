package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/inbox"
)

const (
	topic = "charges"
	group = "mailer"
)

// handle is one that is never called.
func handle(context.Context, *kgo.Record) error { return errors.New("called") }

func TestClosedClient(t *testing.T) {
	t.Parallel()
	client, err := kafka.NewConsumerClient([]string{"127.0.0.1:1"}, group, []string{topic})
	if err != nil {
		t.Fatal(err)
	}
	config := kafka.ConsumerConfig{Client: client, Inbox: inbox.New(nil), Name: "mailer", Handle: handle}
	c, err := kafka.NewConsumer(config)
	if err != nil {
		t.Fatal(err)
	}
	client.CloseAllowingRebalance()
	if err := c.Run(t.Context()); !errors.Is(err, kgo.ErrClientClosed) ||
		!errors.Is(err, onceward.ErrMisconfigured) {
		t.Error(err)
	}
}

func TestConsumerClientsThatAreRefused(t *testing.T) {
	t.Parallel()
	seeds := kgo.SeedBrokers("127.0.0.1:1")
	topics := kgo.ConsumeTopics(topic)
	for name, options := range map[string][]kgo.Opt{
		"no group":   {seeds, topics},
		"commits":    {seeds, topics, kgo.ConsumerGroup(group), kgo.BlockRebalanceOnPoll()},
		"rebalances": {seeds, topics, kgo.ConsumerGroup(group), kgo.DisableAutoCommit()},
		"good":       {seeds, topics, kgo.ConsumerGroup(group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll()},
	} {
		client, err := kgo.NewClient(options...)
		if err != nil {
			t.Fatal(err)
		}
		config := kafka.ConsumerConfig{Client: client, Inbox: inbox.New(nil), Name: "mailer", Handle: handle}
		if _, err := kafka.NewConsumer(config); (err == nil) != (name == "good") {
			t.Errorf("%s: %v", name, err)
		}
		client.CloseAllowingRebalance()
	}
	for _, open := range []func() (*kgo.Client, error){
		func() (*kgo.Client, error) { return kafka.NewConsumerClient(nil, group, []string{topic}) },
		func() (*kgo.Client, error) { return kafka.NewConsumerClient([]string{"127.0.0.1:1"}, group, nil) },
		func() (*kgo.Client, error) {
			return kafka.NewConsumerClient([]string{"127.0.0.1:1"}, "", []string{topic})
		},
	} {
		if _, err := open(); err == nil {
			t.Error("opened")
		}
	}
}

func TestConsumersThatAreRefused(t *testing.T) {
	t.Parallel()
	client, err := kafka.NewConsumerClient([]string{"127.0.0.1:1"}, group, []string{topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseAllowingRebalance)
	complete := kafka.ConsumerConfig{Client: client, Inbox: inbox.New(nil), Name: "mailer", Handle: handle}
	c, err := kafka.NewConsumer(complete)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := c.Run(ended); err != nil {
		t.Errorf("a context that has ended: %v", err)
	}
	for field, change := range map[string]func(c *kafka.ConsumerConfig){
		"Client":      func(c *kafka.ConsumerConfig) { c.Client = nil },
		"Inbox":       func(c *kafka.ConsumerConfig) { c.Inbox = nil },
		"Name":        func(c *kafka.ConsumerConfig) { c.Name = "" },
		"Name is 256": func(c *kafka.ConsumerConfig) { c.Name = strings.Repeat("x", 256) },
		"Handle":      func(c *kafka.ConsumerConfig) { c.Handle = nil },
		"negative":    func(c *kafka.ConsumerConfig) { c.Grace = -1 },
		"MinBackoff":  func(c *kafka.ConsumerConfig) { c.MinBackoff, c.MaxBackoff = 2, 1 },
	} {
		config := complete
		change(&config)
		if c, err := kafka.NewConsumer(config); c != nil || err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
