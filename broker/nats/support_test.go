package nats_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// startServer starts a real server in this process, on that port or, if it is -1, on one that the system gives.
func startServer(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true, MaxPayload: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { stopServer(s) })
	if !s.ReadyForConnections(await.Limit) {
		t.Fatal("the server does not start")
	}
	return s
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// connect returns a JetStream on a connection that comes back when the server does.
func connect(t *testing.T, s *server.Server) jetstream.JetStream {
	t.Helper()
	conn, err := natsgo.Connect(s.ClientURL(), natsgo.Timeout(await.Limit),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond), natsgo.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(await.Limit))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// newStream makes a stream for the subjects.
func newStream(t *testing.T, js jetstream.JetStream, subjects ...string) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: strings.ToUpper(subjects[0]), Subjects: subjects, MaxMsgSize: 32 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// event is number n about an aggregate.
func event(n int) *outbox.Event {
	return &outbox.Event{
		ID: fmt.Sprintf("event-%d", n), Source: "https://shop.example/payments", Type: "payment.created",
		Subject: "Euro € \"5%\"", Time: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		ContentType: "application/json; x=y",
		Data:        []byte(`{"amount":5}`), Topic: "charges", PartitionKey: "payment/5", IdempotencyKey: "k-5",
		Headers: map[string]string{"Tenant": "acme"},
	}
}

// stored returns the messages of a stream in their order.
func stored(t *testing.T, stream jetstream.Stream) (messages []*jetstream.RawStreamMsg) {
	t.Helper()
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		message, err := stream.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, message)
	}
	return messages
}
