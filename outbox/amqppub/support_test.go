package amqppub_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/amqppub"
)

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(servers.Tests{M: m}) }

// newPublisher returns a publisher to the broker, which is closed at the end of the test.
func newPublisher(t testing.TB, server rabbitMQ, config amqppub.Config) *amqppub.Publisher {
	t.Helper()
	config.URL = server.URL()
	publisher, err := amqppub.New(config)
	must(t, err)
	t.Cleanup(func() { must(t, publisher.Close()) })
	return publisher
}

func newEvent(number int, topic string) *outbox.Event {
	return &outbox.Event{
		ID: fmt.Sprintf("event-%d", number), Source: "https://shop.example", Type: "payment.created", Time: time.Unix(1, 5).UTC(),
		ContentType: "application/json", Data: fmt.Appendf(nil, "%d", number), Topic: topic,
	}
}

func publish(t testing.TB, p *amqppub.Publisher, e *outbox.Event) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
func countIDs(messages []amqp.Delivery) map[string]int {
	counts := make(map[string]int)
	for _, message := range messages {
		counts[message.MessageId]++
	}
	return counts
}
