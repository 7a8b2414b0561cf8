package nats_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// bench is what a test of a consumer needs: a server with a stream, and a database.
type bench struct {
	dir    string
	server *server.Server
	js     jetstream.JetStream
	stream jetstream.Stream
	store  *sqlite.Store
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir()}
	b.startServer(t, -1)
	conn, err := natsgo.Connect(b.server.ClientURL(),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond), natsgo.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if b.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	shop := jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"charges"}}
	if b.stream, err = b.js.CreateStream(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	if b.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "consumer.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.store.Close() })
	err = b.store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `CREATE TABLE applied (n INTEGER PRIMARY KEY, event TEXT NOT NULL)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// startServer starts a real server in this process, on that port or, if it is -1, on one that the system gives.
func (b *bench) startServer(t *testing.T, port int) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: b.dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	b.server = s
}

// restartServer stops the server and starts it on the same port and directory.
func (b *bench) restartServer(t *testing.T) {
	t.Helper()
	port := b.server.Addr().(*net.TCPAddr).Port
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.startServer(t, port)
}

// publish sends events, without an ID that the server dedups by.
func (b *bench) publish(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := &natsgo.Msg{Subject: "charges", Data: []byte(id), Header: natsgo.Header{}}
		if id != "" {
			m.Header.Set("ce-id", id)
		}
		if _, err := b.js.PublishMsg(t.Context(), m, jetstream.WithRetryAttempts(50)); err != nil {
			t.Fatal(err)
		}
	}
}

// config returns that of a consumer that writes down what it applies.
func (b *bench) config(t *testing.T) nats.ConsumerConfig {
	t.Helper()
	source, err := b.stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "mailer", AckWait: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return nats.ConsumerConfig{
		Source: source, Inbox: inbox.New(b.store), Name: "mailer", Handle: apply,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
}

// apply writes a message down, in the transaction of the inbox.
func apply(ctx context.Context, m jetstream.Msg) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO applied (event) VALUES (?)`, string(m.Data()))
	return err
}

// running is a consumer at work.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

func start(t *testing.T, config nats.ConsumerConfig) *running {
	t.Helper()
	c, err := nats.NewConsumer(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{cancel, make(chan error, 1)}
	go func() { r.ended <- c.Run(ctx) }()
	t.Cleanup(cancel)
	return r
}

// wait returns what Run returns.
func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		t.Fatal("Run does not end")
		return nil
	}
}

// stop ends a consumer, which must not fail.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
}

// awaitSettled waits until the server has no message left that it would deliver. Nothing tells that, so it is asked.
func (b *bench) awaitSettled(t *testing.T, c nats.ConsumerConfig) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		info, err := c.Source.Info(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%+v, %v", info, err)
		}
		if err == nil && info.NumPending == 0 && info.NumAckPending == 0 && b.deliveredAll(ctx, info) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// deliveredAll reports whether the last message of the stream has been delivered. The server tells its consumers of new
// messages a little after it has confirmed them to the publisher, so that until then none seem to be pending.
func (b *bench) deliveredAll(ctx context.Context, consumer *jetstream.ConsumerInfo) bool {
	stream, err := b.stream.Info(ctx)
	return err == nil && consumer.Delivered.Stream >= stream.State.LastSeq
}

// applied returns what was applied, in order.
func (b *bench) applied(t *testing.T) (events []string) {
	t.Helper()
	rows, err := b.store.DB().QueryContext(t.Context(), `SELECT event FROM applied ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var event string
		if err := rows.Scan(&event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return events
}

// expect fails if other events were applied, or in another order.
func (b *bench) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := b.applied(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("applied %q, want %q", got, want)
	}
}

// ids returns the events e-first to e-(last-1).
func ids(first, last int) (all []string) {
	for n := first; n < last; n++ {
		all = append(all, fmt.Sprintf("e-%d", n))
	}
	return all
}
