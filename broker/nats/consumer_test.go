package nats_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
)

func TestEventIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header natsgo.Header
		want   string
	}{
		"CloudEvents": {natsgo.Header{"ce-id": {"1"}, "Nats-Msg-Id": {"2"}}, "1"},
		"other case":  {natsgo.Header{"Ce-Id": {"1"}}, "1"},
		"encoded":     {natsgo.Header{"ce-id": {"a%20%E2%82%AC+%25"}}, "a €+%"},
		"quoted":      {natsgo.Header{"ce-id": {`"a \"b\" \\c"`}}, `a "b" \c`},
		"message ID":  {natsgo.Header{"Nats-Msg-Id": {"2%20"}}, "2%20"},
		"none":        {natsgo.Header{}, ""},
		"bad":         {natsgo.Header{"ce-id": {"%zz"}}, ""},
		"not UTF-8":   {natsgo.Header{"ce-id": {"%C0%A0"}}, ""},
	} {
		got, err := nats.HeaderEventID(message{header: test.header})
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// message is one that has nothing but headers.
type message struct {
	jetstream.Msg
	header natsgo.Header
}

func (m message) Headers() natsgo.Header { return m.header }

// handle is one that is never called.
func handle(context.Context, jetstream.Msg) error { return errors.New("called") }

func TestConsumersThatAreRefused(t *testing.T) {
	t.Parallel()
	stream := newStream(t, connect(t, startServer(t, t.TempDir(), -1)), "charges")
	source := func(config jetstream.ConsumerConfig) jetstream.Consumer {
		s, err := stream.CreateOrUpdateConsumer(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := jetstream.ConsumerConfig{Durable: "mailer"}
	complete := nats.ConsumerConfig{Source: source(good), Inbox: inbox.New(nil), Name: "mailer", Handle: handle}
	unacknowledged := source(jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	dropping := source(jetstream.ConsumerConfig{MaxDeliver: 5})
	for field, change := range map[string]func(c *nats.ConsumerConfig){
		"Source":           func(c *nats.ConsumerConfig) { c.Source = nil },
		"Inbox":            func(c *nats.ConsumerConfig) { c.Inbox = nil },
		"Name":             func(c *nats.ConsumerConfig) { c.Name = "" },
		"Name is 256":      func(c *nats.ConsumerConfig) { c.Name = strings.Repeat("x", 256) },
		"Handle":           func(c *nats.ConsumerConfig) { c.Handle = nil },
		"negative":         func(c *nats.ConsumerConfig) { c.Grace = -1 },
		"MinBackoff":       func(c *nats.ConsumerConfig) { c.MinBackoff, c.MaxBackoff = 2, 1 },
		"acknowledgements": func(c *nats.ConsumerConfig) { c.Source = unacknowledged },
		"MaxDeliver":       func(c *nats.ConsumerConfig) { c.Source = dropping },
	} {
		config := complete
		change(&config)
		if c, err := nats.NewConsumer(config); c != nil || err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	c, err := nats.NewConsumer(complete)
	if err != nil {
		t.Fatal(err)
	}
	good.MaxDeliver = 5 // by an operator, since
	source(good)
	if err := c.Run(t.Context()); !errors.Is(err, onceward.ErrMisconfigured) || !strings.Contains(err.Error(), "MaxDeliver") {
		t.Errorf("it runs on a consumer that has a MaxDeliver since: %v", err)
	}
}
