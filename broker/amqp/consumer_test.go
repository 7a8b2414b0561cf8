package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

func TestEachEventIsAppliedOnce(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	var ids []string
	for i := range 200 {
		ids = append(ids, fmt.Sprintf("event-%03d", i))
	}
	send(t, server, queue, slices.Concat(ids, ids, ids)...)
	store := newFakeStore()
	stop := start(t, server, store, amqp.ConsumerConfig{Queue: queue})
	for range 3 * len(ids) {
		must(t, await.Value(t, "a transaction", store.ended))
	}
	stop()
	if got := store.applied(); !slices.Equal(got, ids) {
		t.Errorf("applied %v", got)
	}
	if n := server.depth(t, queue); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// M1: with each event the observer learns how many are left in the queue: that of the last one is shown until another
// comes, which may be the next day.
func TestBacklogIsTold(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "a", "b", "c")
	told := make(chan int, 3)
	start(t, server, newFakeStore(), amqp.ConsumerConfig{
		Queue: queue, Prefetch: 1, Observer: onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
			told <- e.(inbox.HandledEvent).Backlog
		}),
	})
	for _, want := range []int{2, 1, 0} {
		if n := await.Value(t, "an event", told); n != want {
			t.Errorf("told %d, want %d", n, want)
		}
	}
}

// As long as the store is away nothing counts, also not with a single try.
func TestStoreIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "a", "b")
	store := newFakeStore()
	store.failures = 20
	stop := start(t, server, store, amqp.ConsumerConfig{Queue: queue, MaxAttempts: 1})
	for range 20 {
		if err := await.Value(t, "a failure", store.ended); err == nil {
			t.Error("a transaction was committed")
		}
	}
	must(t, await.Value(t, "a transaction", store.ended))
	must(t, await.Value(t, "a transaction", store.ended))
	stop()
	if got := store.applied(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("applied %v", got)
	}
}

// By default the dead-letter exchange gets what cannot be applied, and others are not held up.
func TestPoisonIsADeadLetter(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	dead := server.queue(t, nil)
	queue := server.queue(t, amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	send(t, server, queue, "bad", "hopeless", "", strings.Repeat("x", 255), "good")
	store := newFakeStore()
	tries := make(chan string, 100)
	stop := start(t, server, store, amqp.ConsumerConfig{
		Queue: queue, MaxAttempts: 3,
		EventID: func(d *amqp091.Delivery) (string, error) {
			if id, err := amqp.HeaderEventID(d); len(id) < 255 {
				return id, err
			}
			return strings.Repeat("x", inbox.MaxName+1), nil
		},
		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
			tries <- d.MessageId
			switch d.MessageId {
			case "bad":
				return errors.New("broken")
			case "hopeless":
				return fmt.Errorf("%w: broken", amqp.ErrPoison)
			default:
				return apply(ctx, d)
			}
		},
	})
	var tried, rejected []string
	for range 5 {
		tried = append(tried, await.Value(t, "a try", tries))
	}
	received := make(chan string)
	watch(t, server, dead, received)
	for range 4 {
		rejected = append(rejected, await.Value(t, "a dead letter", received))
	}
	stop()
	slices.Sort(tried)
	slices.Sort(rejected)
	if want := []string{"bad", "bad", "bad", "good", "hopeless"}; !slices.Equal(tried, want) || len(tries) != 0 {
		t.Errorf("tried %v, want %v", tried, want)
	}
	if want := []string{"", "bad", "hopeless", strings.Repeat("x", 255)}; !slices.Equal(rejected, want) {
		t.Errorf("rejected %v", rejected)
	}
	if got := store.applied(); !slices.Equal(got, []string{"good"}) {
		t.Errorf("applied %v", got)
	}
}

// watch passes on the IDs of the messages in a queue, until the test ends.
func watch(t *testing.T, server rabbitMQ, queue string, ids chan<- string) {
	t.Helper()
	conn, err := amqp091.Dial(server.URL())
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	ch, err := conn.Channel()
	must(t, err)
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	must(t, err)
	go func() {
		for d := range deliveries {
			ids <- d.MessageId
		}
	}()
}

// An event is rejected after so many failures of its own. Those of the store do not count, but the pauses grow.
func TestWhichFailuresCount(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		fail    func(call int) error
		calls   int
		atLeast time.Duration
	}{
		"tries": {fail: func(int) error { return broken }, calls: 3},
		"panic": {fail: func(int) error { panic("oh") }, calls: 3},
		"unavailable": {func(call int) error {
			if call <= 10 {
				return fmt.Errorf("begin: %w", store.ErrUnavailable)
			}
			return broken
		}, 13, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := sharedRabbitMQ(t)
			dead := server.queue(t, nil)
			queue := server.queue(t, amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
			send(t, server, queue, "bad")
			received := make(chan string, 1)
			watch(t, server, dead, received)
			var calls atomic.Int64
			begun := time.Now()
			stop := start(t, server, newFakeStore(), amqp.ConsumerConfig{
				Queue: queue, MaxAttempts: 3,
				Handle: func(context.Context, *amqp091.Delivery) error { return test.fail(int(calls.Add(1))) },
			})
			await.Value(t, "the dead letter", received)
			took := time.Since(begun)
			stop()
			if got := int(calls.Load()); got != test.calls || took < test.atLeast {
				t.Errorf("%d calls in %v, want %d in %v at least", got, took, test.calls, test.atLeast)
			}
		})
	}
}

func TestOnPoisonDecides(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "bad")
	broken := errors.New("broken")
	calls := make(chan error, 10)
	handled := make(chan struct{}, 10)
	stop := start(t, server, newFakeStore(), amqp.ConsumerConfig{
		Queue: queue, MaxAttempts: 2,
		Handle: func(context.Context, *amqp091.Delivery) error {
			handled <- struct{}{}
			return broken
		},
		OnPoison: func(_ context.Context, _ *amqp091.Delivery, cause error) error {
			calls <- cause
			if len(calls) == 1 {
				return errors.New("not now")
			}
			return nil
		},
	})
	for range 3 {
		await.Value(t, "a try", handled)
	}
	stop()
	if len(calls) != 2 || len(handled) != 0 {
		t.Errorf("%d decisions, want 2, and %d further tries", len(calls), len(handled))
	}
	for range len(calls) {
		if cause := <-calls; !errors.Is(cause, broken) {
			t.Errorf("cause = %v", cause)
		}
	}
	if n := server.depth(t, queue); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// What is being applied is finished and acknowledged, and what was not begun goes back.
func TestRunEndsInOrder(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "a", "b", "c")
	store := newFakeStore()
	begun, goOn := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	wait := startUntil(ctx, t, server, store, amqp.ConsumerConfig{
		Queue: queue, Prefetch: 1, Grace: await.Limit,
		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
			close(begun) // a second delivery would panic
			<-goOn
			return errors.Join(ctx.Err(), apply(ctx, d))
		},
	})
	await.Value(t, "a delivery", begun)
	stop()
	close(goOn)
	wait()
	if got := store.applied(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("applied %v", got)
	}
	if n := server.depth(t, queue); n != 2 {
		t.Errorf("%d messages are left, want 2", n)
	}
}

// What takes too long is interrupted and goes back, and that is no failure.
func TestGraceIsLimited(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "a")
	begun := make(chan struct{})
	stop := start(t, server, newFakeStore(), amqp.ConsumerConfig{
		Queue: queue, MaxAttempts: 1, Grace: time.Millisecond,
		Handle: func(ctx context.Context, _ *amqp091.Delivery) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		},
	})
	await.Value(t, "a delivery", begun)
	stop()
	if n := server.depth(t, queue); n != 1 {
		t.Errorf("%d messages are left, want 1", n)
	}
}

func TestEventIDs(t *testing.T) {
	t.Parallel()
	for _, each := range []struct {
		headers amqp091.Table
		message string
		want    string
	}{
		{amqp091.Table{"cloudEvents:id": "a", "cloudEvents_id": "b"}, "c", "a"},
		{amqp091.Table{"cloudEvents:id": int64(1), "cloudEvents_id": "b"}, "c", "b"},
		{amqp091.Table{"cloudEvents:id": ""}, "c", "c"},
		{nil, "c", "c"},
		{nil, "", ""},
	} {
		got, err := amqp.HeaderEventID(&amqp091.Delivery{Headers: each.headers, MessageId: each.message})
		if got != each.want || (err == nil) != (each.want != "") {
			t.Errorf("%v: %q, %v", each, got, err)
		}
	}
}

func TestConsumersThatAreRefused(t *testing.T) {
	t.Parallel()
	complete := amqp.ConsumerConfig{
		URL: "amqp://host/", Queue: "q", Inbox: inbox.New(newFakeStore()), Name: "n", Handle: apply,
	}
	if _, err := amqp.NewConsumer(complete); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(c *amqp.ConsumerConfig){
		"URL":            func(c *amqp.ConsumerConfig) { c.URL = "amqp://user:secret@host:port/" },
		"Queue":          func(c *amqp.ConsumerConfig) { c.Queue = "" },
		"Inbox":          func(c *amqp.ConsumerConfig) { c.Inbox = nil },
		"Name is 256":    func(c *amqp.ConsumerConfig) { c.Name = strings.Repeat("x", 256) },
		"Handle":         func(c *amqp.ConsumerConfig) { c.Handle = nil },
		"Prefetch":       func(c *amqp.ConsumerConfig) { c.Prefetch = 1 << 16 },
		"Grace":          func(c *amqp.ConsumerConfig) { c.Grace = -1 },
		"ConnectTimeout": func(c *amqp.ConsumerConfig) { c.ConnectTimeout = -1 },
		"MinBackoff":     func(c *amqp.ConsumerConfig) { c.MinBackoff, c.MaxBackoff = 2, 1 },
	} {
		config := complete
		change(&config)
		c, err := amqp.NewConsumer(config)
		if c != nil || err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: err = %v", field, err)
		}
	}
}
