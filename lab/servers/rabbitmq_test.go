package servers_test

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
)

// on runs something on a connection and a channel of its own.
func on(s *servers.RabbitMQServer, work func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(s.URL())
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = work(ch)
	}
	return errors.Join(err, conn.Close())
}

// declare makes a durable queue.
func declare(t testing.TB, s *servers.RabbitMQServer) (queue string) {
	t.Helper()
	queue = s.Name(t)
	must(t, on(s, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	}))
	return queue
}

// publish sends a persistent message and waits until the broker has it.
func publish(t testing.TB, s *servers.RabbitMQServer, queue, body string) {
	t.Helper()
	must(t, on(s, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, message)
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return errors.New("not confirmed")
		}
		return nil
	}))
}

// wantMessage: a queue holds one message.
func wantMessage(t testing.TB, s *servers.RabbitMQServer, queue, body string) {
	t.Helper()
	must(t, on(s, func(ch *amqp.Channel) error {
		message, ok, err := ch.Get(queue, true)
		if err == nil && (!ok || string(message.Body) != body || message.MessageCount != 0) {
			t.Errorf("the queue holds %v, %q and %d more, want %q alone", ok, message.Body, message.MessageCount, body)
		}
		return err
	}))
}

// TestSharedRabbitMQ: a broker that is shared takes connections, and tells tests apart by names.
func TestSharedRabbitMQ(t *testing.T) {
	t.Parallel()
	s := servers.RabbitMQ(t)
	if s != servers.RabbitMQ(t) || !s.Shared() {
		t.Error("two calls gave two brokers, or it is not said to be shared")
	}
	first, second := declare(t, s), declare(t, s)
	publish(t, s, first, "hello")
	publish(t, s, second, "world")
	wantMessage(t, s, first, "hello")
	wantMessage(t, s, second, "world")
	must(t, on(s, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(first, false, false, false)
		_, again := ch.QueueDelete(second, false, false, false)
		return errors.Join(err, again)
	}))
}

// TestKilledRabbitMQKeepsMessages: what was confirmed survives, in a queue that is on disk.
func TestKilledRabbitMQKeepsMessages(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a broker of its own, twice")
	s := servers.NewRabbitMQ(t)
	queue := declare(t, s)
	must(t, s.AwaitQueue(queue))
	publish(t, s, queue, "kept")
	must(t, s.Kill())
	if err := on(s, func(*amqp.Channel) error { return nil }); err == nil {
		t.Error("a killed broker answers")
	}
	must(t, s.Restart())
	wantMessage(t, s, queue, "kept")
}
