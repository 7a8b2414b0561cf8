package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(servers.Tests{M: m})) }

// newPublisher returns a publisher to the broker, which is closed at the end of the test.
func newPublisher(t testing.TB, server rabbitMQ, config amqp.PublisherConfig) *amqp.Publisher {
	t.Helper()
	config.URL, config.ConnectTimeout = server.URL(), await.Limit
	publisher, err := amqp.NewPublisher(config)
	must(t, err)
	t.Cleanup(func() { must(t, publisher.Close()) })
	return publisher
}

func newEvent(number int, topic string) *outbox.Event {
	return &outbox.Event{
		ID: fmt.Sprintf("event-%d", number), Source: "https://shop.example", Type: "payment.created",
		Time:        time.Unix(1, 5).UTC(),
		ContentType: "application/json", Data: fmt.Appendf(nil, "%d", number), Topic: topic,
	}
}

func publish(t testing.TB, p *amqp.Publisher, e *outbox.Event) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	return p.Publish(ctx, e)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// countIDs counts the messages of each ID.
func countIDs(messages []amqp091.Delivery) map[string]int {
	counts := make(map[string]int)
	for _, message := range messages {
		counts[message.MessageId]++
	}
	return counts
}

// rabbitMQ is a real broker, and what a test does with its queues.
type rabbitMQ struct{ *servers.RabbitMQServer }

// sharedRabbitMQ returns the broker that all tests share.
func sharedRabbitMQ(t testing.TB) rabbitMQ {
	t.Helper()
	return rabbitMQ{servers.RabbitMQ(t)}
}

// ownRabbitMQ starts one that the test may kill and pause.
func ownRabbitMQ(t testing.TB) rabbitMQ {
	t.Helper()
	return rabbitMQ{servers.NewRabbitMQ(t)}
}

// do runs something on a connection and a channel of its own.
func (r rabbitMQ) do(work func(ch *amqp091.Channel) error) error {
	conn, err := amqp091.Dial(r.URL())
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = work(ch)
	}
	return errors.Join(err, conn.Close())
}

// queue declares a durable queue for this test, with arguments such as x-max-length. It survives Kill, and is deleted
// at the end of the test where the broker is not.
func (r rabbitMQ) queue(t testing.TB, arguments amqp091.Table) (name string) {
	t.Helper()
	name = r.Name(t)
	must(t, r.do(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		return err
	}))
	if !r.Shared() {
		must(t, r.AwaitQueue(name))
		return name
	}
	t.Cleanup(func() {
		must(t, r.do(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}))
	})
	return name
}

// depth counts the messages in a queue that are ready to be delivered.
func (r rabbitMQ) depth(t testing.TB, queue string) (messages int) {
	t.Helper()
	must(t, r.do(func(ch *amqp091.Channel) error {
		found, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		messages = found.Messages
		return err
	}))
	return messages
}

// take removes all messages that are ready from a queue and returns them.
func (r rabbitMQ) take(t testing.TB, queue string) (taken []amqp091.Delivery) {
	t.Helper()
	must(t, r.do(func(ch *amqp091.Channel) error {
		for {
			message, ok, err := ch.Get(queue, true)
			if err != nil || !ok {
				return err
			}
			taken = append(taken, message)
		}
	}))
	return taken
}
