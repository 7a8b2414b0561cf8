package natssub_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward/inbox/natssub"
)

// O5: events that come twice are applied once, in order.
func TestAppliesEachEventOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, id := range ids(0, 15) {
		b.publish(t, id, id)
	}
	c := b.consumer(t)
	run := start(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	b.expect(t, ids(0, 15)...)
}

// The server restarts in the middle, on the same port and directory: nothing is lost, and nothing applied twice.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(t, ids(0, 10)...)
	c := b.consumer(t)
	c.MaxAttempts = 1000
	var once sync.Once
	halfway, restarted := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		if string(m.Data()) == "e-5" {
			once.Do(func() {
				close(halfway)
				<-restarted
			})
		}
		return apply(ctx, m)
	}
	run := start(t, c)
	<-halfway
	b.restartServer(t)
	close(restarted)
	b.publish(t, ids(10, 20)...)
	b.awaitSettled(t, c)
	run.stop(t)
	// The order is not the stream's if the client had to drop what came twice, and the server delivers it again.
	got, want := b.applied(t), ids(0, 20)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("applied %q", got)
	}
}

// Several workers and several consumers share the work, and events are applied once.
func TestManyWorkers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var runs []*running
	c := b.consumer(t)
	c.Workers, c.Buffer = 4, 8
	for range 3 {
		runs = append(runs, start(t, c))
	}
	for _, id := range ids(0, 20) {
		b.publish(t, id, id)
	}
	b.awaitSettled(t, c)
	for _, run := range runs {
		run.stop(t)
	}
	seen := make(map[string]bool)
	for _, event := range b.applied(t) {
		if seen[event] {
			t.Errorf("%s was applied twice", event)
		}
		seen[event] = true
	}
	if len(seen) != 20 {
		t.Errorf("%d events were applied", len(seen))
	}
}

// What is being applied when Run is to end is finished and acknowledged, and what waits here is handed back at once.
func TestEndsGracefully(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(t, ids(0, 5)...)
	c := b.consumer(t)
	source, err := b.stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "mailer", AckWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c.Source = source
	begun, finish := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		close(begun)
		<-finish
		return apply(ctx, m)
	}
	run := start(t, c)
	<-begun
	run.cancel()
	close(finish)
	if err := run.wait(t); err != nil {
		t.Fatal(err)
	}
	b.expect(t, "e-0")

	c.Handle = apply
	run = start(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	if got := len(b.applied(t)); got != 5 {
		t.Errorf("%d events were applied", got)
	}
}

// A handler that does not come to an end is interrupted after the grace, and leaves no trace.
func TestGraceIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(t, "e-0")
	c := b.consumer(t)
	c.Grace = 10 * time.Millisecond
	begun := make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		if err := apply(ctx, m); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	run := start(t, c)
	<-begun
	run.stop(t)
	b.expect(t)
}

// A handler that takes longer than the AckWait keeps its message.
func TestSlowHandlersKeepTheirMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(t, "e-0")
	c := b.consumer(t)
	source, err := b.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "impatient", AckWait: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	c.Source, c.Workers = source, 2
	var calls atomic.Int64
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		calls.Add(1)
		time.Sleep(1200 * time.Millisecond) // a slow handler
		return apply(ctx, m)
	}
	run := start(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	info, err := source.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Delivered.Consumer != 1 || calls.Load() != 1 {
		t.Errorf("%d calls, %+v", calls.Load(), info)
	}
	b.expect(t, "e-0")
}

func TestEventIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header nats.Header
		want   string
	}{
		"CloudEvents": {nats.Header{"ce-id": {"1"}, "Nats-Msg-Id": {"2"}}, "1"},
		"other case":  {nats.Header{"Ce-Id": {"1"}}, "1"},
		"encoded":     {nats.Header{"ce-id": {"a%20%E2%82%AC+%25"}}, "a €+%"},
		"quoted":      {nats.Header{"ce-id": {`"a \"b\" \\c"`}}, `a "b" \c`},
		"message ID":  {nats.Header{"Nats-Msg-Id": {"2%20"}}, "2%20"},
		"none":        {nats.Header{}, ""},
		"bad":         {nats.Header{"ce-id": {"%zz"}}, ""},
		"not UTF-8":   {nats.Header{"ce-id": {"%C0%A0"}}, ""},
	} {
		got, err := natssub.HeaderEventID(message{header: test.header})
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// message is one that has nothing but headers.
type message struct {
	jetstream.Msg
	header nats.Header
}

func (m message) Headers() nats.Header { return m.header }

// Run does not hang when what it consumes from is gone for good.
func TestSourceIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publish(t, "e-0")
	c := b.consumer(t)
	run := start(t, c)
	b.awaitSettled(t, c)
	if err := b.stream.DeleteConsumer(t.Context(), "mailer"); err != nil {
		t.Fatal(err)
	}
	if err := run.wait(t); !errors.Is(err, jetstream.ErrConsumerDeleted) {
		t.Errorf("the consumer was deleted: %v", err)
	}
	if err := c.Run(t.Context()); err == nil {
		t.Error("it runs without a consumer")
	}
	c = b.consumer(t)
	run = start(t, c)
	b.awaitSettled(t, c)
	b.js.Conn().Close()
	if err := run.wait(t); err == nil {
		t.Error("the connection was closed")
	}
}

func TestConsumersThatAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	complete := b.consumer(t)
	source := func(config jetstream.ConsumerConfig) jetstream.Consumer {
		s, err := b.stream.CreateConsumer(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	unacknowledged := source(jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	dropping := source(jetstream.ConsumerConfig{MaxDeliver: 5})
	for name, change := range map[string]func(c *natssub.Consumer){
		"Source":     func(c *natssub.Consumer) { c.Source = nil },
		"Inbox":      func(c *natssub.Consumer) { c.Inbox = nil },
		"Name":       func(c *natssub.Consumer) { c.Name = "" },
		"length":     func(c *natssub.Consumer) { c.Name = strings.Repeat("x", 256) },
		"Handle":     func(c *natssub.Consumer) { c.Handle = nil },
		"negative":   func(c *natssub.Consumer) { c.Grace = -1 },
		"no acks":    func(c *natssub.Consumer) { c.Source = unacknowledged },
		"MaxDeliver": func(c *natssub.Consumer) { c.Source = dropping },
	} {
		c := complete
		change(&c)
		if err := c.Run(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
