package amqpsub_test

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/internal/servers"
)

// rabbitMQ is a broker with what tests do in it.
type rabbitMQ struct{ *servers.RabbitMQServer }

// sharedRabbitMQ is the broker of all tests, newRabbitMQ one for tests that kill, stop or pause it.
func sharedRabbitMQ(t testing.TB) rabbitMQ { return rabbitMQ{servers.RabbitMQ(t)} }
func newRabbitMQ(t testing.TB) rabbitMQ    { return rabbitMQ{servers.NewRabbitMQ(t)} }

// Do runs something on a connection and a channel of its own.
func (s rabbitMQ) Do(work func(ch *amqp.Channel) error) error {
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

// Queue declares a durable queue for this test, with arguments such as x-max-length, and deletes it with all that is in it at
// the end. On a broker of the test's own it waits until the queue would survive Kill instead.
func (s rabbitMQ) Queue(t testing.TB, arguments amqp.Table) (name string) {
	t.Helper()
	name = s.Name(t)
	must(t, s.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		return err
	}))
	if !s.Shared() {
		must(t, s.AwaitQueue(name))
		return name
	}
	t.Cleanup(func() {
		err := s.Do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		})
		if err != nil {
			t.Errorf("delete the queue of the test: %v", err)
		}
	})
	return name
}

// Depth counts the messages in a queue that are ready to be delivered.
func (s rabbitMQ) Depth(t testing.TB, queue string) (messages int) {
	t.Helper()
	must(t, s.Do(func(ch *amqp.Channel) error {
		found, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		messages = found.Messages
		return err
	}))
	return messages
}
