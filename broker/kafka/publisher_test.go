package kafka_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/outbox"
)

func TestWritesTheEventInBinaryMode(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	p := newPublisher(t, cluster, kafka.PublisherConfig{})
	if err := p.Publish(t.Context(), event("a", 1)); err != nil {
		t.Fatal(err)
	}
	record := read(t, cluster, "charges", 1)[0]
	want := map[string]string{
		"ce_specversion": "1.0", "ce_id": "a-1", "ce_source": "https://shop.example/payments",
		"ce_type":    "payment.created",
		"ce_subject": "Euro € 5", "ce_time": "2026-01-01T12:00:00Z",
		"ce_partitionkey": "payment/a", "ce_idempotencykey": "k-5",
		"content-type": "application/json", "Tenant": "acme",
	}
	if got := headers(t, record); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if string(record.Key) != "payment/a" || string(record.Value) != `{"amount":5}` {
		t.Errorf("got %q: %q", record.Key, record.Value)
	}
}

// The largest payload that an outbox takes is within what the client sends.
func TestLargestPayload(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	e := event("a", 1)
	e.Data = make([]byte, outbox.MaxPayload)
	e.Headers["Large"] = strings.Repeat("x", 8<<10)
	if err := newPublisher(t, cluster, kafka.PublisherConfig{}).Publish(t.Context(), e); err != nil {
		t.Error(err)
	}
}

// Without an aggregate there is no order, and thus no key.
func TestNoKeyWithoutAggregate(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	e := event("a", 1)
	e.PartitionKey = ""
	if err := newPublisher(t, cluster, kafka.PublisherConfig{}).Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if record := read(t, cluster, "charges", 1)[0]; record.Key != nil {
		t.Errorf("the key is %q", record.Key)
	}
}

func TestTopicByEvent(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, kfake.SeedTopics(1, "payment.created"))
	unknown := errors.New("no such tenant")
	p := newPublisher(t, cluster, kafka.PublisherConfig{Topic: func(e *outbox.Event) (string, error) {
		if e.Subject == "" {
			return "", unknown
		}
		return e.Type, nil
	}})
	if err := p.Publish(t.Context(), event("a", 1)); err != nil {
		t.Fatal(err)
	}
	read(t, cluster, "payment.created", 1)
	err := p.Publish(t.Context(), &outbox.Event{ID: "1"})
	if !errors.Is(err, unknown) || errors.Is(err, outbox.ErrPermanent) {
		t.Errorf("without a topic: %v", err)
	}
}

func TestClientsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]kgo.Opt{
		"one ack":       {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		"no idempotent": {kgo.DisableIdempotentWrite()},
		"manual":        {kgo.ManualFlushing()},
		"one topic":     {kgo.DefaultProduceTopicAlways(), kgo.DefaultProduceTopic("t")},
		"transactional": {kgo.TransactionalID("t")},
	} {
		client, err := kgo.NewClient(append(options, kgo.SeedBrokers("127.0.0.1:1"))...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kafka.NewPublisher(kafka.PublisherConfig{Client: client}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		client.Close()
		if _, err := kafka.NewPublisherClient([]string{"127.0.0.1:1"}, options...); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := kafka.NewPublisher(kafka.PublisherConfig{}); err == nil {
		t.Error("no client: accepted")
	}
	if _, err := kafka.NewPublisherClient(nil); err == nil {
		t.Error("no brokers: opened")
	}
}

// What Kafka would refuse each time makes a dead letter, and what an operator can repair does not.
func TestWhichErrorsArePermanent(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t, kfake.SeedTopics(1, "refusing"))
	p := newPublisher(t, cluster, kafka.PublisherConfig{}, kgo.UnknownTopicRetries(0), kgo.RecordRetries(2))
	tooLarge := kerr.MessageTooLarge
	change := func(f func(*outbox.Event)) *outbox.Event {
		e := event("a", 1)
		f(e)
		return e
	}
	for name, test := range map[string]struct {
		event     *outbox.Event
		answer    *kerr.Error
		permanent bool
	}{
		"too large":         {change(func(e *outbox.Event) { e.Data = []byte(strings.Repeat("x", 2<<20)) }), nil, true},
		"reserved header":   {change(func(e *outbox.Event) { e.Headers["CE_id"] = "other" }), nil, true},
		"content type":      {change(func(e *outbox.Event) { e.Headers["Content-Type"] = "other" }), nil, true},
		"no topic":          {change(func(e *outbox.Event) { e.Topic = "" }), nil, true},
		"topic missing":     {change(func(e *outbox.Event) { e.Topic = "missing" }), nil, false},
		"invalid record":    {event("a", 1), kerr.InvalidRecord, true},
		"too large there":   {change(func(e *outbox.Event) { e.Data = make([]byte, 1<<20) }), tooLarge, true},
		"too large a batch": {event("a", 1), tooLarge, false},
		"not authorized":    {event("a", 1), kerr.TopicAuthorizationFailed, false},
		"too few in sync":   {event("a", 1), kerr.NotEnoughReplicas, false},
		"a wrong authority": {event("a", 1), kerr.ClusterAuthorizationFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			if test.answer != nil {
				test.event.Topic = "refusing"
				fault := cluster.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Produce}, Topic: "refusing", Err: test.answer, Count: -1,
				})
				defer fault.Remove()
			}
			err := p.Publish(t.Context(), test.event)
			if err == nil || errors.Is(err, outbox.ErrPermanent) != test.permanent {
				t.Errorf("%v, want permanent %v", err, test.permanent)
			}
		})
	}
}
