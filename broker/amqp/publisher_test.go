package amqp_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/outbox"
)

func TestEventsAreInTheBindingsForm(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	e := newEvent(1, queue)
	e.Subject, e.PartitionKey, e.IdempotencyKey = "17", "payment/17", "key-1"
	e.Headers = map[string]string{"trace-id": "ü"}
	must(t, publish(t, newPublisher(t, server, amqp.PublisherConfig{}), e))
	messages := server.take(t, queue)
	if len(messages) != 1 {
		t.Fatalf("%d messages", len(messages))
	}
	got := messages[0]
	if got.MessageId != e.ID || got.ContentType != e.ContentType || string(got.Body) != "1" ||
		got.DeliveryMode != amqp091.Persistent {
		t.Errorf("message %+v", got)
	}
	delete(got.Headers, "onceward-publish")
	want := amqp091.Table{
		"cloudEvents:specversion": "1.0", "cloudEvents:id": "event-1", "cloudEvents:source": "https://shop.example",
		"cloudEvents:type": "payment.created", "cloudEvents:subject": "17",
		"cloudEvents:time":         "1970-01-01T00:00:01.000000005Z",
		"cloudEvents:partitionkey": "payment/17", "cloudEvents:idempotencykey": "key-1", "trace-id": "ü",
	}
	if !maps.Equal(got.Headers, want) {
		t.Errorf("headers %v, want %v", got.Headers, want)
	}
}

func TestExchangeAndRoutingKeyAreChosen(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue, exchange := server.queue(t, nil), server.Name(t)
	must(t, server.do(func(ch *amqp091.Channel) error {
		// It goes when the queue does, because nothing else is bound to it.
		return errors.Join(
			ch.ExchangeDeclare(exchange, "topic", true, true, false, false, nil),
			ch.QueueBind(queue, "payment.*", exchange, false, nil))
	}))
	p := newPublisher(t, server, amqp.PublisherConfig{
		Exchange:   amqp.Always(exchange),
		RoutingKey: func(e *outbox.Event) (string, error) { return e.Type, nil },
	})
	must(t, publish(t, p, newEvent(1, "")))
	got := server.take(t, queue)
	if len(got) != 1 || got[0].RoutingKey != "payment.created" || got[0].Exchange != exchange {
		t.Errorf("messages %v", got)
	}
}

func TestManyPublishAtOnce(t *testing.T) {
	t.Parallel()
	const goroutines, each = 32, 1000 / 32
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	p := newPublisher(t, server, amqp.PublisherConfig{MaxInFlight: 7})
	var work sync.WaitGroup
	for g := range goroutines {
		work.Go(func() {
			for i := range each {
				if err := publish(t, p, newEvent(g*each+i, queue)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	counts := countIDs(server.take(t, queue))
	if len(counts) != goroutines*each {
		t.Errorf("%d different messages, want %d", len(counts), goroutines*each)
	}
}

// Of messages that are in flight together, each gets its own verdict, also if they have the same ID.
func TestUnroutableMessagesFail(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	p := newPublisher(t, server, amqp.PublisherConfig{Channels: 1})
	var work sync.WaitGroup
	for i := range 300 {
		work.Go(func() {
			if err := publish(t, p, newEvent(i/3, queue)); err != nil {
				t.Error(err)
			}
		})
		work.Go(func() {
			err := publish(t, p, newEvent(i/3, "no-such-"+queue))
			if !errors.Is(err, amqp.ErrUnroutable) || !strings.Contains(err.Error(), "312 NO_ROUTE") {
				t.Errorf("err = %v, want the broker's reason", err)
			}
		})
	}
	work.Wait()
	if n := len(server.take(t, queue)); n != 300 {
		t.Errorf("%d messages, want 300", n)
	}
}

func TestRefusedMessagesFail(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, amqp091.Table{"x-max-length": int64(2), "x-overflow": "reject-publish"})
	p := newPublisher(t, server, amqp.PublisherConfig{})
	confirmed := make(map[string]int)
	for i := range 20 {
		e := newEvent(i, queue)
		switch err := publish(t, p, e); {
		case err == nil:
			confirmed[e.ID] = 1
		case !errors.Is(err, amqp.ErrRefused):
			t.Errorf("err = %v", err)
		}
	}
	if got := countIDs(server.take(t, queue)); len(confirmed) == 20 || !maps.Equal(got, confirmed) {
		t.Errorf("queued %v, confirmed %v", got, confirmed)
	}
	must(t, publish(t, p, newEvent(20, queue)))
}

// The broker closes the channel. The publisher opens another.
func TestMissingExchangeIsReported(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	p := newPublisher(t, server, amqp.PublisherConfig{
		Channels: 2,
		Exchange: func(e *outbox.Event) (string, error) { return e.Headers["exchange"], nil },
	})
	for i := range 5 {
		e := newEvent(i, queue)
		e.Headers = map[string]string{"exchange": "no-such-" + queue}
		err := publish(t, p, e)
		refusal := (*amqp091.Error)(nil)
		if !errors.Is(err, amqp.ErrLost) || !errors.As(err, &refusal) || refusal.Code != amqp091.NotFound {
			t.Errorf("err = %v, want the broker's reason", err)
		}
	}
	for i := range 5 {
		must(t, publish(t, p, newEvent(i, queue)))
	}
}

// What the client would give up the connection for is refused before.
func TestImpossibleMessagesAreDeadLettersAtOnce(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue, long := server.queue(t, nil), strings.Repeat("x", 256)
	p := newPublisher(t, server, amqp.PublisherConfig{})
	for name, spoil := range map[string]func(e *outbox.Event){
		"routing key":       func(e *outbox.Event) { e.Topic = long },
		"ID":                func(e *outbox.Event) { e.ID = long },
		"content type":      func(e *outbox.Event) { e.ContentType = long },
		"name of a header":  func(e *outbox.Event) { e.Headers = map[string]string{long: ""} },
		"attribute":         func(e *outbox.Event) { e.Headers = map[string]string{"CloudEvents_id": ""} },
		"copies":            func(e *outbox.Event) { e.Headers = map[string]string{"CC": queue} },
		"number of tries":   func(e *outbox.Event) { e.Headers = map[string]string{"x-delivery-count": "0"} },
		"number of publish": func(e *outbox.Event) { e.Headers = map[string]string{"Onceward-Publish": "0"} },
	} {
		e := newEvent(1, queue)
		spoil(e)
		if err := publish(t, p, e); !errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if n := server.depth(t, queue); n != 0 {
		t.Errorf("%d messages", n)
	}
}

func TestChoosersErrorsAreTheDeliverys(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	choose := func(*outbox.Event) (string, error) { return "", broken }
	for _, config := range []amqp.PublisherConfig{{Exchange: choose}, {RoutingKey: choose}} {
		config.URL = "amqp://127.0.0.1:1"
		p, err := amqp.NewPublisher(config)
		must(t, err)
		if err := publish(t, p, newEvent(1, "")); !errors.Is(err, broken) || errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("err = %v", err)
		}
		must(t, p.Close())
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := amqp.NewPublisher(amqp.PublisherConfig{URL: "amqp://user:secret@host:port/"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("err = %v, want one without the password", err)
	}
	for _, config := range []amqp.PublisherConfig{
		{Channels: -1}, {MaxInFlight: -1}, {ConnectTimeout: -1}, {Heartbeat: -1},
	} {
		config.URL = "amqp://host/"
		if _, err := amqp.NewPublisher(config); err == nil {
			t.Errorf("%+v is accepted", config)
		}
	}
}

func TestOpenWantsTheBroker(t *testing.T) {
	t.Parallel()
	_, err := amqp.OpenPublisher(t.Context(), amqp.PublisherConfig{URL: "amqp://guest:secret@127.0.0.1:1/"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("err = %v", err)
	}
	p, err := amqp.OpenPublisher(t.Context(), amqp.PublisherConfig{URL: sharedRabbitMQ(t).URL()})
	must(t, err)
	must(t, p.Close())
	must(t, p.Close())
	if err := publish(t, p, newEvent(1, "topic")); !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("err = %v", err)
	}
}

func TestEndedContextPublishesNothing(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	p := newPublisher(t, server, amqp.PublisherConfig{})
	must(t, publish(t, p, newEvent(1, queue)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if err := p.Publish(ctx, newEvent(2, queue)); !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	}
	if n := server.depth(t, queue); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}
