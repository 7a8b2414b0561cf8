package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
)

func TestPublishesTheEventInBinaryMode(t *testing.T) {
	t.Parallel()
	js := connect(t, startServer(t, t.TempDir(), -1))
	stream := newStream(t, js, "charges")
	p, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js})
	if err != nil {
		t.Fatal(err)
	}
	// A repetition is confirmed and not kept.
	for range 2 {
		if err := p.Publish(t.Context(), event(1)); err != nil {
			t.Fatal(err)
		}
	}
	messages := stored(t, stream)
	if len(messages) != 1 {
		t.Fatalf("%d messages", len(messages))
	}
	want := map[string]string{
		"Nats-Msg-Id": "event-1", "ce-specversion": "1.0", "ce-id": "event-1",
		"ce-source": "https://shop.example/payments",
		"ce-type":   "payment.created", "ce-subject": "Euro%20%E2%82%AC%20%225%25%22",
		"ce-time":         "2026-01-01T12:00:00Z",
		"ce-partitionkey": "payment/5", "ce-idempotencykey": "k-5", "ce-datacontenttype": "application/json;%20x=y",
		"Tenant": "acme",
	}
	for name, value := range want {
		if got := messages[0].Header.Values(name); len(got) != 1 || got[0] != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	if len(messages[0].Header) != len(want) {
		t.Errorf("headers: %v", messages[0].Header)
	}
	if messages[0].Subject != "charges" || string(messages[0].Data) != `{"amount":5}` {
		t.Errorf("%s: %s", messages[0].Subject, messages[0].Data)
	}
}

func TestSubjectByEvent(t *testing.T) {
	t.Parallel()
	js := connect(t, startServer(t, t.TempDir(), -1))
	stream := newStream(t, js, "shop", "shop.>")
	unknown := errors.New("no such tenant")
	p, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js, Subject: func(e *outbox.Event) (string, error) {
		if e.Type == "" {
			return "", unknown
		}
		return "shop." + e.Type, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), event(1)); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, stream)[0].Subject; got != "shop.payment.created" {
		t.Errorf("published to %s", got)
	}
	err = p.Publish(t.Context(), &outbox.Event{ID: "1"})
	if !errors.Is(err, unknown) || errors.Is(err, outbox.ErrPermanent) {
		t.Errorf("without a subject: %v", err)
	}
}

// Nothing that a stream has not confirmed counts as published; what an operator can repair is tried again.
func TestWhichErrorsArePermanent(t *testing.T) {
	t.Parallel()
	js := connect(t, startServer(t, t.TempDir(), -1))
	newStream(t, js, "charges")
	p, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js})
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*outbox.Event)) *outbox.Event {
		e := event(1)
		f(e)
		return e
	}
	for name, test := range map[string]struct {
		event     *outbox.Event
		permanent bool
	}{
		"too large here":  {change(func(e *outbox.Event) { e.Data = []byte(strings.Repeat("x", 128<<10)) }), true},
		"too large there": {change(func(e *outbox.Event) { e.Data = []byte(strings.Repeat("x", 40<<10)) }), true},
		"no topic":        {change(func(e *outbox.Event) { e.Topic = "" }), true},
		"wildcard":        {change(func(e *outbox.Event) { e.Topic = "charges.*" }), true},
		"empty part":      {change(func(e *outbox.Event) { e.Topic = "charges..eu" }), true},
		"space":           {change(func(e *outbox.Event) { e.Topic = "charges eu" }), true},
		"attribute":       {change(func(e *outbox.Event) { e.Headers["CE-ID"] = "other" }), true},
		"command":         {change(func(e *outbox.Event) { e.Headers["Nats-Rollup"] = "all" }), true},
		"status":          {change(func(e *outbox.Event) { e.Headers["Status"] = "503" }), true},
		"no stream":       {change(func(e *outbox.Event) { e.Topic = "refunds" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := p.Publish(t.Context(), test.event)
			if err == nil || errors.Is(err, outbox.ErrPermanent) != test.permanent {
				t.Errorf("%v, want permanent %v", err, test.permanent)
			}
			if errors.Is(err, nats.ErrNoStream) != (name == "no stream") {
				t.Error(err)
			}
		})
	}
	if _, err := nats.NewPublisher(nats.PublisherConfig{}); err == nil {
		t.Error("no JetStream: accepted")
	}
}

// Deliveries while the server is away fail, and the same events are there once, in order, after it has come back.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), servers.FreePort(t)
	s := startServer(t, dir, port)
	js := connect(t, s)
	stream := newStream(t, js, "charges")
	p, err := nats.NewPublisher(nats.PublisherConfig{JetStream: js})
	if err != nil {
		t.Fatal(err)
	}
	const events = 30
	for n := range events {
		if n == 10 {
			stopServer(s)
			// The time of this delivery is up while the server is away, so that it may or may not have been sent.
			gone, stop := context.WithCancel(t.Context())
			stop()
			if err := p.Publish(gone, event(n)); err == nil {
				t.Fatal("published without a server")
			}
			startServer(t, dir, port)
		}
		// A worker tries again until it is confirmed: the restart can lose a delivery and its confirmation.
		await.Success(t, "the event is confirmed", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return p.Publish(ctx, event(n))
		})
	}
	messages := stored(t, stream)
	if len(messages) != events {
		t.Errorf("%d messages, want %d", len(messages), events)
	}
	for n, message := range messages {
		if got := message.Header.Get("ce-id"); got != fmt.Sprintf("event-%d", n) {
			t.Errorf("message %d is %s", n, got)
		}
	}
}
