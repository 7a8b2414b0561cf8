package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sharedRabbitMQ starts the broker that all tests of this process share, on first use.
var sharedRabbitMQ = sync.OnceValues(func() (*RabbitMQServer, error) {
	server, err := startSharedRabbitMQ(os.Getenv(rabbitmqVariable))
	if server != nil {
		server.keepsQueues = true
	}
	return server, err
})

// startSharedRabbitMQ uses the broker at the URL, or starts one if there is none.
func startSharedRabbitMQ(url string) (*RabbitMQServer, error) {
	if url == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
		defer cancel()
		return StartRabbitMQ(ctx)
	}
	if _, err := amqp.ParseURI(url); err != nil {
		// Neither the value nor the error is repeated: they may hold a password.
		return nil, fmt.Errorf("%s does not hold a URL like amqp://user:password@host:port/vhost", rabbitmqVariable)
	}
	if _, err := askName(url); err != nil {
		return nil, fmt.Errorf("the RabbitMQ that %s names: %w", rabbitmqVariable, err)
	}
	return &RabbitMQServer{url: url}, nil
}

// RabbitMQ returns the broker that all tests of this process share: the one whose URL is in ONCEWARD_TEST_RABBITMQ, or a
// private one, which is started by the first test that asks. The test fails if there is none. Each test works with names of
// its own: see Name and Queue.
func RabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	server, err := sharedRabbitMQ()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// NewRabbitMQ starts a broker for this test alone, and closes it at the end. It is for tests that kill, stop or freeze it;
// the others share the one of RabbitMQ.
func NewRabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	server, err := StartRabbitMQ(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of RabbitMQ:\n%s", server.Log())
		}
		if err := server.Close(); err != nil {
			t.Errorf("close RabbitMQ: %v", err)
		}
	})
	return server
}

// Name makes a name for a queue or an exchange that no other test has, on no machine: the broker may be shared. It begins with
// the name of the test, for whoever looks into the broker.
func (s *RabbitMQServer) Name(t testing.TB) string {
	t.Helper()
	return schemaName(t.Name())
}

// Queue declares a durable queue for this test, with arguments such as x-max-length, and deletes it with all that is in it at
// the end. On a broker of the test's own it also waits until the queue would survive Kill.
func (s *RabbitMQServer) Queue(t testing.TB, arguments amqp.Table) (name string) {
	t.Helper()
	name = s.Name(t)
	err := s.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		return err
	})
	if err != nil {
		t.Fatalf("declare a queue: %v", err)
	}
	if s.keepsQueues {
		t.Cleanup(func() { s.deleteQueue(t, name) })
	} else if err := s.AwaitQueue(name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Shared says that the broker outlives the tests that use it, so that each has to remove what it makes.
func (s *RabbitMQServer) Shared() bool { return s.keepsQueues }

// AwaitQueue waits until a queue of a broker that was started here would survive Kill: it is in the table of the broker's own
// database then. A declaration that is only in the log of that may still be lost, unlike a message, which is safe when it is
// confirmed.
func (s *RabbitMQServer) AwaitQueue(queue string) error {
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(pollEvery) {
		files, err := filepath.Glob(filepath.Join(s.dir, "mnesia", s.node+"@*", "rabbit_durable_queue.DC*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			text, _ := os.ReadFile(file) // one that has gone since is not missed
			if bytes.Contains(text, []byte(queue)) {
				return nil
			}
		}
	}
	return fmt.Errorf("servers: queue %s is not on disk after %v", queue, startLimit)
}

func (s *RabbitMQServer) deleteQueue(t testing.TB, name string) {
	err := s.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
	if err != nil {
		t.Errorf("delete the queue of the test: %v", err)
	}
}

// Depth counts the messages in a queue that are ready to be delivered.
func (s *RabbitMQServer) Depth(t testing.TB, queue string) (messages int) {
	t.Helper()
	err := s.Do(func(ch *amqp.Channel) error {
		found, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		messages = found.Messages
		return err
	})
	if err != nil {
		t.Fatalf("inspect the queue: %v", err)
	}
	return messages
}

// Take removes all messages that are ready from a queue and returns them.
func (s *RabbitMQServer) Take(t testing.TB, queue string) (taken []amqp.Delivery) {
	t.Helper()
	err := s.Do(func(ch *amqp.Channel) error {
		for {
			message, ok, err := ch.Get(queue, true)
			if err != nil || !ok {
				return err
			}
			taken = append(taken, message)
		}
	})
	if err != nil {
		t.Fatalf("take messages: %v", err)
	}
	return taken
}

// Do runs something on a connection and a channel of its own.
func (s *RabbitMQServer) Do(work func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = work(ch)
	}
	return errors.Join(err, conn.Close())
}
