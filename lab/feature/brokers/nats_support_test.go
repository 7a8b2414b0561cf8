package brokers_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/nats"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/sqlite"
)

// natsBench is what a test of a consumer needs: a server with a stream, and a database.
type natsBench struct {
	dir    string
	server *server.Server
	way    *servers.TCPProxy // to the server, at an address that stays when the server restarts
	js     jetstream.JetStream
	stream jetstream.Stream
	store  *sqlite.Store
}

func newNATSBench(t *testing.T) *natsBench {
	t.Helper()
	b := &natsBench{dir: t.TempDir()}
	b.startServer(t)
	var err error
	if b.way, err = servers.StartTCPProxy(b.server.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.way.Close() })
	conn, err := natsgo.Connect("nats://"+b.way.Addr(), natsgo.Timeout(await.Limit),
		natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond), natsgo.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if b.js, err = jetstream.New(conn, jetstream.WithDefaultTimeout(await.Limit)); err != nil {
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

// startServer starts a real server in this process.
func (b *natsBench) startServer(t *testing.T) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: b.dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(await.Limit) {
		t.Fatal("the server does not start")
	}
	b.server = s
}

// restartServer stops the server and starts it on the same directory.
func (b *natsBench) restartServer(t *testing.T) {
	t.Helper()
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.startServer(t)
	if err := b.way.Retarget("tcp://" + b.server.Addr().String()); err != nil {
		t.Fatal(err)
	}
}

// publish sends events, without an ID that the server dedups by.
func (b *natsBench) publish(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := &natsgo.Msg{Subject: "charges", Data: []byte(id), Header: natsgo.Header{}}
		if id != "" {
			m.Header.Set("ce-id", id)
		}
		if _, err := b.js.PublishMsg(t.Context(), m, jetstream.WithRetryAttempts(10_000)); err != nil {
			t.Fatal(err)
		}
	}
}

// config returns the configuration of a consumer that writes down what it applies. The server waits for
// acknowledgements for longer than any machine stands still.
func (b *natsBench) config(t *testing.T) nats.ConsumerConfig {
	t.Helper()
	return b.configWaiting(t, time.Hour)
}

// configWaiting is config with an AckWait.
func (b *natsBench) configWaiting(t *testing.T, ackWait time.Duration) nats.ConsumerConfig {
	t.Helper()
	source, err := b.stream.CreateOrUpdateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "mailer", AckWait: ackWait,
	})
	if err != nil {
		t.Fatal(err)
	}
	return nats.ConsumerConfig{
		Source: source, Inbox: inbox.New(b.store), Name: "mailer", Handle: applyNATS,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, Logger: quiet,
	}
}

// applyNATS writes a message down, in the transaction of the inbox.
func applyNATS(ctx context.Context, m jetstream.Msg) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO applied (event) VALUES (?)`, string(m.Data()))
	return err
}

func startNATS(t *testing.T, config nats.ConsumerConfig) *running {
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

// awaitSettled waits until the server has no message left that it would deliver. Nothing tells that, so it is asked.
func (b *natsBench) awaitSettled(t *testing.T, c nats.ConsumerConfig) {
	t.Helper()
	await.That(t, "the server has nothing left to deliver", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a question that a restart has lost is asked again
		defer cancel()
		info, err := c.Source.Info(ctx)
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0 && b.deliveredAll(ctx, info)
	})
}

// deliveredAll reports whether the last message of the stream has been delivered. The server tells its consumers of new
// messages a little after it has confirmed them to the publisher, so that until then none seem to be pending.
func (b *natsBench) deliveredAll(ctx context.Context, consumer *jetstream.ConsumerInfo) bool {
	stream, err := b.stream.Info(ctx)
	return err == nil && consumer.Delivered.Stream >= stream.State.LastSeq
}

// applied returns what was applied, in order.
func (b *natsBench) applied(t *testing.T) (events []string) {
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
func (b *natsBench) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := b.applied(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("applied %q, want %q", got, want)
	}
}

// idsNATS returns the events e-first to e-(last-1).
func idsNATS(first, last int) (all []string) {
	for n := first; n < last; n++ {
		all = append(all, fmt.Sprintf("e-%d", n))
	}
	return all
}
