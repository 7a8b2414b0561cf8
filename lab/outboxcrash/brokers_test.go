package outboxcrash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
)

var quiet = slog.New(slog.DiscardHandler)

// broker is one that can be restarted, with all that it was told to keep, at the same address.
type broker struct {
	name    string
	restart func() error
}

// consumes runs a consumer until the test ends.
func (w *world) consumes(name string, run func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	w.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			w.Errorf("the consumer of %s: %v", name, err)
		}
	})
}

// startKafka starts three brokers in this process, and a consumer.
func (w *world) startKafka() (b broker, seeds []string) {
	w.Helper()
	options := []kfake.Opt{
		kfake.Ports(servers.FreePort(w), servers.FreePort(w), servers.FreePort(w)), kfake.DataDir(w.TempDir()),
		kfake.SeedTopics(8, "kafka"), kfake.ClusterID("outboxcrash"),
	}
	cluster, err := kfake.NewCluster(options...)
	must(w, err)
	w.Cleanup(func() { cluster.Close() })
	seeds = cluster.ListenAddrs()
	w.consumes("kafka", func(ctx context.Context) error {
		client, err := kafka.NewConsumerClient(seeds, "outboxcrash", []string{"kafka"}, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		defer client.CloseAllowingRebalance()
		consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
			Client: client, Inbox: w.inbox, Name: "kafka", Logger: quiet,
			Handle: func(ctx context.Context, r *kgo.Record) error { return apply(ctx, r.Value) },
		})
		if err != nil {
			return err
		}
		return consumer.Run(ctx)
	})
	return broker{"kafka", func() error {
		cluster.Close()
		var err error
		cluster, err = kfake.NewCluster(options...)
		return err
	}}, seeds
}

// startNATS starts a server with JetStream in this process, and a consumer, which has one message at a time: only so
// does the server keep their order when it delivers one again.
func (w *world) startNATS() (b broker, url string) {
	w.Helper()
	dir, port := w.TempDir(), servers.FreePort(w)
	start := func() (*server.Server, error) {
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true, SyncAlways: true})
		if err != nil {
			return nil, err
		}
		s.Start()
		if !s.ReadyForConnections(await.Limit) {
			return nil, errors.New("the NATS server does not get ready")
		}
		return s, nil
	}
	running, err := start()
	must(w, err)
	stop := func() {
		running.Shutdown()
		running.WaitForShutdown()
	}
	w.Cleanup(func() { stop() })
	url = fmt.Sprintf("nats://127.0.0.1:%d", port)
	conn, err := natsgo.Connect(url, natsgo.Timeout(await.Limit),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	must(w, err)
	w.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(await.Limit))
	must(w, err)
	stream, err := js.CreateStream(w.Context(), jetstream.StreamConfig{Name: "outboxcrash", Subjects: []string{"nats"}})
	must(w, err)
	source, err := stream.CreateConsumer(w.Context(), jetstream.ConsumerConfig{
		Durable: "outboxcrash", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1, AckWait: 2 * time.Second,
	})
	must(w, err)
	consumer, err := nats.NewConsumer(nats.ConsumerConfig{
		Source: source, Inbox: w.inbox, Name: "nats", Logger: quiet,
		Handle: func(ctx context.Context, m jetstream.Msg) error { return apply(ctx, m.Data()) },
	})
	must(w, err)
	w.consumes("nats", consumer.Run)
	return broker{"nats", func() error {
		stop()
		var err error
		running, err = start()
		return err
	}}, url
}

// startAMQP starts a RabbitMQ, and a consumer that has one message at a time, for the same reason.
func (w *world) startAMQP() (b broker, url, queue string) {
	w.Helper()
	rabbit := servers.NewRabbitMQ(w)
	queue = w.declareQueue(rabbit)
	consumer, err := amqp.NewConsumer(amqp.ConsumerConfig{
		URL: rabbit.URL(), Queue: queue, Inbox: w.inbox, Name: "amqp", Prefetch: 1, Logger: quiet, MaxBackoff: 300 * time.Millisecond,
		Handle: func(ctx context.Context, d *amqp091.Delivery) error { return apply(ctx, d.Body) },
	})
	must(w, err)
	w.consumes("amqp", consumer.Run)
	return broker{"amqp", func() error { return errors.Join(rabbit.Kill(), rabbit.Restart()) }}, rabbit.URL(), queue
}

// declareQueue declares a durable queue that survives the death of its broker.
func (w *world) declareQueue(rabbit *servers.RabbitMQServer) (name string) {
	w.Helper()
	conn, err := amqp091.Dial(rabbit.URL())
	must(w, err)
	defer func() { must(w, conn.Close()) }()
	ch, err := conn.Channel()
	must(w, err)
	name = rabbit.Name(w)
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	must(w, errors.Join(err, rabbit.AwaitQueue(name)))
	return name
}
