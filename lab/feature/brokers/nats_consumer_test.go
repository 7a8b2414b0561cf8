package brokers_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/nightly"
)

// O5: events that come twice are applied once, in order.
func TestNATSAppliesEachEventOnce(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	for _, id := range idsNATS(0, 15) {
		b.publish(t, id, id)
	}
	c := b.config(t)
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	b.expect(t, idsNATS(0, 15)...)
}

// M1: with each event the observer learns how many are behind it.
func TestNATSBacklogIsTold(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, idsNATS(0, 5)...)
	c := b.config(t)
	var told []int
	c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
		told = append(told, e.(inbox.HandledEvent).Backlog)
	})
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	if want := []int{4, 3, 2, 1, 0}; !slices.Equal(told, want) {
		t.Errorf("told %d, want %d", told, want)
	}
}

// The server restarts in the middle, on the same directory: nothing is lost, and nothing applied twice.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, idsNATS(0, 10)...)
	c := b.configWaiting(t, time.Second) // what the restart has cost comes again after that
	c.MaxAttempts = 1_000_000
	var once sync.Once
	halfway, restarted := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		if string(m.Data()) == "e-5" {
			once.Do(func() {
				close(halfway)
				<-restarted
			})
		}
		return applyNATS(ctx, m)
	}
	run := startNATS(t, c)
	<-halfway
	b.restartServer(t)
	close(restarted)
	b.publish(t, idsNATS(10, 20)...)
	b.awaitSettled(t, c)
	run.stop(t)
	// The order is not the stream's if the client had to drop what came twice, and the server delivers it again.
	got, want := b.applied(t), idsNATS(0, 20)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("applied %q", got)
	}
}

// Several workers and several consumers share the work, and events are applied once.
func TestManyWorkers(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	var runs []*running
	c := b.config(t)
	c.Workers, c.Buffer = 4, 8
	for range 3 {
		runs = append(runs, startNATS(t, c))
	}
	for _, id := range idsNATS(0, 20) {
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
func TestNATSEndsGracefully(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, idsNATS(0, 5)...)
	c := b.config(t)
	source, err := b.stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "mailer", AckWait: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Source = source
	begun, finish := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		close(begun)
		<-finish
		return applyNATS(ctx, m)
	}
	run := startNATS(t, c)
	<-begun
	run.cancel()
	close(finish)
	if err := run.wait(t); err != nil {
		t.Fatal(err)
	}
	b.expect(t, "e-0")

	c.Handle = applyNATS
	run = startNATS(t, c)
	b.awaitSettled(t, c)
	run.stop(t)
	if got := len(b.applied(t)); got != 5 {
		t.Errorf("%d events were applied", got)
	}
}

// A handler that does not come to an end is interrupted after the grace, and leaves no trace.
func TestNATSGraceIsBounded(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, "e-0")
	c := b.config(t)
	c.Grace = 10 * time.Millisecond
	begun := make(chan struct{})
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		if err := applyNATS(ctx, m); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	run := startNATS(t, c)
	<-begun
	run.stop(t)
	b.expect(t)
}

// A handler that takes longer than the AckWait keeps its message.
func TestSlowHandlersKeepTheirMessage(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it takes longer than an AckWait that a machine which stands still for seconds does not outrun")
	const ackWait = 20 * time.Second
	b := newNATSBench(t)
	b.publish(t, "e-0")
	c := b.config(t)
	source, err := b.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "impatient", AckWait: ackWait,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Source, c.Workers = source, 2
	var calls atomic.Int64
	c.Handle = func(ctx context.Context, m jetstream.Msg) error {
		calls.Add(1)
		time.Sleep(ackWait + ackWait/2) // a slow handler
		return applyNATS(ctx, m)
	}
	run := startNATS(t, c)
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

// Run does not hang when what it consumes from is gone for good.
func TestSourceIsGone(t *testing.T) {
	t.Parallel()
	b := newNATSBench(t)
	b.publish(t, "e-0")
	c := b.config(t)
	run := startNATS(t, c)
	b.awaitSettled(t, c)
	if err := b.stream.DeleteConsumer(t.Context(), "mailer"); err != nil {
		t.Fatal(err)
	}
	if err := run.wait(t); !errors.Is(err, jetstream.ErrConsumerDeleted) {
		t.Errorf("the consumer was deleted: %v", err)
	}
	if err := startNATS(t, c).wait(t); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("it runs without a consumer: %v", err)
	}
	c = b.config(t)
	run = startNATS(t, c)
	b.awaitSettled(t, c)
	b.js.Conn().Close()
	if err := run.wait(t); err == nil {
		t.Error("the connection was closed")
	}
}
