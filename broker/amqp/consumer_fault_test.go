package amqp_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
)

// The broker is killed while an event is being applied. That is committed and cannot be acknowledged, so it comes
// again, and is not applied again.
func TestKilledBrokerDeliversAgain(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "TestBrokerFails kills a broker, and TestEachEventIsAppliedOnce repeats deliveries")
	server := ownRabbitMQ(t)
	queue := server.queue(t, nil)
	send(t, server, queue, "a")
	store := newFakeStore()
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	stop := start(t, server, store, amqp.ConsumerConfig{
		Queue: queue,
		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
			begun <- struct{}{}
			<-goOn
			return apply(ctx, d)
		},
	})
	await.Value(t, "the delivery", begun)
	must(t, server.Kill())
	close(goOn)
	must(t, await.Value(t, "the commit", store.ended))
	must(t, server.Restart())
	must(t, await.Value(t, "the second delivery", store.ended))
	send(t, server, queue, "b")
	must(t, await.Value(t, "the commit of another", store.ended))
	stop()
	if got := store.applied(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("applied %v", got)
	}

	// A broker that does not answer does not keep Run from ending.
	stop = start(t, server, store, amqp.ConsumerConfig{Queue: queue})
	send(t, server, queue, "c")
	must(t, await.Value(t, "the commit", store.ended))
	must(t, server.Pause())
	stop()
}

// A queue that is missing is waited for, at the beginning and later.
func TestMissingQueueIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	store := newFakeStore()
	queue := server.Name(t)
	begun := make(chan struct{}, 10)
	start(t, server, store, amqp.ConsumerConfig{
		Queue: queue,
		Handle: func(ctx context.Context, d *amqp091.Delivery) error {
			begun <- struct{}{}
			return apply(ctx, d)
		},
	})
	for range 2 {
		must(t, server.do(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
			return err
		}))
		send(t, server, queue, server.Name(t))
		await.Value(t, "a delivery", begun)
		must(t, server.do(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		}))
	}
}

// Connections that are lost as soon as they are made are not made again without end at the same pace.
func TestShortSessionsAreFailures(t *testing.T) {
	t.Parallel()
	server := sharedRabbitMQ(t)
	queue := server.queue(t, nil)
	handled := make(chan struct{}, 10)
	start(t, server, newFakeStore(), amqp.ConsumerConfig{
		Queue: queue, MinBackoff: 20 * time.Millisecond, MaxBackoff: time.Minute,
		Handle: func(_ context.Context, d *amqp091.Delivery) error {
			handled <- struct{}{}
			return d.Ack(false) // the broker closes the channel over the second acknowledgement, that of the consumer
		},
	})
	begun := time.Now()
	for i := range 7 {
		send(t, server, queue, fmt.Sprint(i))
		await.Value(t, "a delivery", handled)
	}
	// The six pauses are at least the halves of 20 ms, 40 ms, and so on.
	if took := time.Since(begun); took < 630*time.Millisecond {
		t.Errorf("six connections in %v", took)
	}
}
