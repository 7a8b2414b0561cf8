package outboxcrash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/examples/provider"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/httppub"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// workerVariable makes the test binary a worker process, with the settings that it holds, instead of running tests.
const workerVariable = "ONCEWARD_OUTBOXCRASH_WORKER"

func TestMain(m *testing.M) {
	if settings := os.Getenv(workerVariable); settings != "" {
		if err := runWorker(settings); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(servers.Main(m))
}

// workerSettings say where a worker process finds its messages, and where they go. Topics whose receiver is empty are
// not delivered.
type workerSettings struct {
	// Store is the URL of a PostgreSQL schema, or the path of a SQLite file.
	Store string
	Kafka []string
	NATS  string
	AMQP  string
	Queue string // of AMQP
	HTTP  string
	// Provider is where charges are made. DieAfterCharge makes the process kill itself when the provider has made one,
	// before that is recorded.
	Provider       string
	DieAfterCharge bool
	// Limit is the number of attempts of each route, and Strict makes dead letters hold up their aggregate.
	Limit  int
	Strict bool
	// Lease is how long messages are claimed for. Default: shortLease.
	Lease time.Duration
}

// shortLease is the lease of workers that are killed: what they had in hand is free after it. A worker that is slower
// repeats deliveries, which harms nothing.
const shortLease = 1500 * time.Millisecond

// everything is what these tests need of a store: both kinds have it all.
type everything interface {
	store.Store
	store.Transactor
	store.Reconciler
	outbox.Store
	inbox.Store
	Close() error
}

func openStore(ctx context.Context, url string) (everything, error) {
	if strings.HasPrefix(url, "postgres") {
		return postgres.Open(ctx, url, postgres.WithLogger(slog.New(slog.DiscardHandler)))
	}
	return sqlite.Open(ctx, url)
}

// runWorker works until its input ends.
func runWorker(encoded string) error {
	var settings workerSettings
	if err := json.Unmarshal([]byte(encoded), &settings); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := openStore(ctx, settings.Store)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	routes, err := settings.routes()
	if err != nil {
		return err
	}
	worker, err := outbox.NewWorker(store, outbox.WorkerConfig{
		Routes: routes, Lease: settings.Lease, Poll: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("working")
	return worker.Run(ctx)
}

// routes deliver to all receivers that there are.
func (s *workerSettings) routes() (map[string]outbox.Route, error) {
	handlers := make(map[string]outbox.Handler)
	var errs []error
	add := func(topic string, there bool, open func() (outbox.Publisher, error)) {
		if !there {
			return
		}
		publisher, err := open()
		errs = append(errs, err)
		handlers[topic] = outbox.Publish(publisher)
	}
	add("kafka", len(s.Kafka) > 0, s.openKafka)
	add("nats", s.NATS != "", s.openNATS)
	add("amqp", s.AMQP != "", func() (outbox.Publisher, error) {
		return amqp.NewPublisher(amqp.PublisherConfig{URL: s.AMQP, RoutingKey: amqp.Always(s.Queue)})
	})
	add("http", s.HTTP != "", func() (outbox.Publisher, error) {
		return httppub.New(httppub.Config{Endpoint: s.HTTP, Secrets: []string{hookSecret}, AllowPrivate: true})
	})
	if s.Provider != "" {
		handlers["charge"] = s.charge
	}
	routes := make(map[string]outbox.Route)
	for topic, handler := range handlers {
		routes[topic] = outbox.Route{
			Handler: handler, Timeout: 5 * time.Second, MaxAttempts: s.Limit, BlockOnDeadLetter: s.Strict,
			MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond,
		}
	}
	return routes, errors.Join(errs...)
}

func (s *workerSettings) openKafka() (outbox.Publisher, error) {
	client, err := kafka.NewPublisherClient(s.Kafka, kgo.RetryTimeout(3*time.Second))
	if err != nil {
		return nil, err
	}
	return kafka.NewPublisher(kafka.PublisherConfig{Client: client})
}

func (s *workerSettings) openNATS() (outbox.Publisher, error) {
	conn, err := natsgo.Connect(s.NATS, natsgo.RetryOnFailedConnect(true), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	return nats.NewPublisher(nats.PublisherConfig{JetStream: js})
}

// charge calls the provider with the downstream key of the message.
func (s *workerSettings) charge(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
	client := &provider.Client{URL: s.Provider}
	charge, err := client.Charge(ctx, d.DownstreamKey, provider.ChargeRequest{Amount: 1999, Currency: "EUR", Reference: d.AggregateID})
	if err != nil {
		return outbox.Result{}, err
	}
	if s.DieAfterCharge {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // it is on its way
	}
	return outbox.Result{ProviderID: charge.ID}, nil
}
