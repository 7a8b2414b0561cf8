package amqpsub_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/inbox/amqpsub"
	"github.com/onceward/onceward/store"
)

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
			dead := server.Queue(t, nil)
			queue := server.Queue(t, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
			send(t, server, queue, "bad")
			received := make(chan string, 1)
			watch(t, server, dead, received)
			var calls atomic.Int64
			begun := time.Now()
			stop := start(t, server, newFakeStore(), amqpsub.Consumer{
				Queue: queue, MaxAttempts: 3,
				Handle: func(context.Context, *amqp.Delivery) error { return test.fail(int(calls.Add(1))) },
			})
			await(t, "the dead letter", received)
			took := time.Since(begun)
			stop()
			if got := int(calls.Load()); got != test.calls || took < test.atLeast {
				t.Errorf("%d calls in %v, want %d in %v at least", got, took, test.calls, test.atLeast)
			}
		})
	}
}
