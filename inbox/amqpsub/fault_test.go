package amqpsub_test

import (
	"context"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/inbox/amqpsub"
	"github.com/onceward/onceward/internal/servicetest"
)

// The broker is killed while an event is being applied. That is committed and cannot be acknowledged, so it comes again, and is
// not applied again.
func TestKilledBrokerDeliversAgain(t *testing.T) {
	t.Parallel()
	server := servicetest.NewRabbitMQ(t)
	queue := server.Queue(t, nil)
	send(t, server, queue, "a")
	store := newFakeStore()
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	stop := start(t, server, store, amqpsub.Consumer{
		Queue: queue,
		Handle: func(ctx context.Context, d *amqp.Delivery) error {
			begun <- struct{}{}
			<-goOn
			return apply(ctx, d)
		},
	})
	await(t, "the delivery", begun)
	must(t, server.Kill())
	close(goOn)
	must(t, await(t, "the commit", store.ended))
	must(t, server.Restart())
	must(t, await(t, "the second delivery", store.ended))
	send(t, server, queue, "b")
	must(t, await(t, "the commit of another", store.ended))
	stop()
	if got := store.applied(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("applied %v", got)
	}

	// A broker that does not answer does not keep Run from ending.
	stop = start(t, server, store, amqpsub.Consumer{Queue: queue})
	send(t, server, queue, "c")
	must(t, await(t, "the commit", store.ended))
	must(t, server.Pause())
	stop()
}

// A queue that is missing is waited for, at the beginning and later.
func TestMissingQueueIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := servicetest.RabbitMQ(t)
	store := newFakeStore()
	queue := server.Name(t)
	begun := make(chan struct{}, 10)
	start(t, server, store, amqpsub.Consumer{
		Queue: queue,
		Handle: func(ctx context.Context, d *amqp.Delivery) error {
			begun <- struct{}{}
			return apply(ctx, d)
		},
	})
	for range 2 {
		must(t, server.Do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
			return err
		}))
		send(t, server, queue, server.Name(t))
		await(t, "a delivery", begun)
		must(t, server.Do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		}))
	}
}
