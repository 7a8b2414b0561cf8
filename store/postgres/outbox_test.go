package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/postgres"
)

// sentCounter counts the statements that are sent.
type sentCounter struct{ sent atomic.Int64 }

// TraceQueryStart implements [pgx.QueryTracer].
func (c *sentCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.sent.Add(1)
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (c *sentCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func delivering(h outbox.Handler) outbox.WorkerConfig {
	return outbox.WorkerConfig{Routes: map[string]outbox.Route{"topic": {Handler: h}}}
}

// TestIdleWorkerIsQuiet: while there is nothing to do, a worker asks the server at most twice a second.
func TestIdleWorkerIsQuiet(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it watches for five seconds")
	config, err := pgxpool.ParseConfig(servers.Postgres(t).SchemaURL(t))
	must(t, err)
	var statements sentCounter
	config.ConnConfig.Tracer = &statements
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	store, err := postgres.New(t.Context(), pool, quiet)
	must(t, err)
	t.Cleanup(func() {
		must(t, store.Close())
		pool.Close()
	})
	worker, err := outbox.NewWorker(store,
		delivering(func(context.Context, *outbox.Delivery) (outbox.Result, error) { return outbox.Result{}, nil }))
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := worker.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	const settling, watched = 2 * time.Second, 5 * time.Second
	time.Sleep(settling) // the pauses between its looks grow at first
	before, began := statements.sent.Load(), time.Now()
	time.Sleep(watched)
	sent, took := statements.sent.Load()-before, time.Since(began)
	stop()
	await.Value(t, "the end of the worker", ended)
	if most := int64(2*took.Seconds()) + 1; sent > most {
		t.Errorf("O2: an idle worker sent %d statements in %s, want at most %d", sent, took, most)
	}
	if sent == 0 {
		t.Error("O2: an idle worker did not look at all, or the statements were not counted")
	}
}

// TestOtherProcessesWake: a worker is told of messages that another process commits, and not of those it rolls back.
func TestOtherProcessesWake(t *testing.T) {
	t.Parallel()
	url := servers.Postgres(t).SchemaURL(t)
	open := func() *postgres.Store {
		s, err := postgres.Open(t.Context(), url, quiet)
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	adder, watcher := open(), open()
	await.That(t, "the store gets notifications of messages", watcher.HearsMessages)
	hints, unwatch := watcher.WatchMessages()
	defer unwatch()
	for drained := false; !drained; { // its own greeting may have come
		select {
		case <-hints:
		default:
			drained = true
		}
	}
	box, err := outbox.New(adder, outbox.Config{})
	must(t, err)
	undo := errors.New("undo")
	add := func(failure error) error {
		return adder.InTx(t.Context(), func(ctx context.Context) error {
			_, err := postgres.AddMessage(ctx, box, postgres.Tx(ctx), outbox.Message{Topic: "topic", Type: "t"})
			return errors.Join(err, failure)
		})
	}
	if err := add(undo); !errors.Is(err, undo) {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // not every message notifies: see notifyPause
	select {
	case <-hints:
		t.Error("O2: a hint came for a message that was rolled back")
	default:
	}
	must(t, add(nil))
	await.Value(t, "a hint for a message of another process", hints)
}

// TestUndoneAnswerLeavesTheNotification: not every message notifies, and one that is never written does not take the
// turn of the next.
func TestUndoneAnswerLeavesTheNotification(t *testing.T) {
	t.Parallel()
	u := newOutboxTest(t, "")
	watcher, err := postgres.Open(t.Context(), u.url, quiet)
	must(t, err)
	t.Cleanup(func() { must(t, watcher.Close()) })
	await.That(t, "the store gets notifications of messages", watcher.HearsMessages)
	hints, unwatch := watcher.WatchMessages()
	defer unwatch()
	for drained := false; !drained; { // its own greeting may have come
		select {
		case <-hints:
		default:
			drained = true
		}
	}
	for _, action := range []store.TxAction{store.TxRollback, store.TxCommit} {
		must(t, handled(t, u.store, "key", action, func(ctx context.Context) { adder{t, u.box}.answer(ctx, "a") }))
	}
	await.Value(t, "a hint for a message of another process", hints)
}
