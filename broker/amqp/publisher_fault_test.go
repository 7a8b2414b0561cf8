package amqp_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/internal/await"
)

// traffic is what became of events that many goroutines publish for as long as a test wants.
type traffic struct {
	publisher *amqp.Publisher
	queue     string
	work      sync.WaitGroup
	stop      context.CancelFunc

	mu sync.Mutex
	// results are in the order in which they came, of the first the test has seen some, and fresh is closed when there
	// are more.
	results   []error
	seen      int
	fresh     chan struct{}
	next      int
	confirmed []string
}

func startTraffic(t *testing.T, p *amqp.Publisher, queue string) *traffic {
	ctx, stop := context.WithCancel(t.Context())
	f := &traffic{publisher: p, queue: queue, stop: stop, fresh: make(chan struct{})}
	t.Cleanup(f.work.Wait)
	t.Cleanup(stop)
	for range 16 {
		f.work.Go(func() {
			for ctx.Err() == nil {
				f.one(t)
			}
		})
	}
	return f
}

// one publishes an event and notes what became of it.
func (f *traffic) one(t *testing.T) {
	f.mu.Lock()
	f.next++
	e := newEvent(f.next, f.queue)
	f.mu.Unlock()
	err := publish(t, f.publisher, e)
	if err != nil {
		time.Sleep(20 * time.Millisecond) // a broker that is down refuses quickly, and needs the processor to come back
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.confirmed = append(f.confirmed, e.ID)
	}
	f.results = append(f.results, err)
	close(f.fresh)
	f.fresh = make(chan struct{})
}

// await waits for a result that suits, behind those that it has looked at before.
func (f *traffic) await(t *testing.T, what string, suits func(error) bool) {
	t.Helper()
	for {
		f.mu.Lock()
		fresh, results := f.fresh, f.results[f.seen:]
		if i := slices.IndexFunc(results, suits); i >= 0 {
			f.seen += i + 1
			f.mu.Unlock()
			return
		}
		f.seen = len(f.results)
		f.mu.Unlock()
		await.Value(t, what, fresh)
	}
}

func succeeded(err error) bool { return err == nil }

// One broker goes through everything, because each start takes seconds.
func TestBrokerFails(t *testing.T) {
	t.Parallel()
	server := ownRabbitMQ(t)
	t.Run("killed", func(t *testing.T) { testKilledBroker(t, server) })
	t.Run("frozen", func(t *testing.T) { testFrozenBroker(t, server) })
}

// Every event that was confirmed is there afterwards, and what was in flight has failed.
func testKilledBroker(t *testing.T, server rabbitMQ) {
	queue := server.queue(t, nil)
	traffic := startTraffic(t, newPublisher(t, server, amqp.PublisherConfig{}), queue)
	for range 500 {
		traffic.await(t, "a confirm", succeeded)
	}
	must(t, server.Kill())
	traffic.await(t, "the loss of what was in flight", func(err error) bool { return errors.Is(err, amqp.ErrLost) })
	traffic.await(t, "a refusal to connect", func(err error) bool {
		refused := (*net.OpError)(nil)
		return errors.As(err, &refused) && refused.Op == "dial"
	})
	must(t, server.Restart())
	for range 100 {
		traffic.await(t, "a confirm by the broker that is back", succeeded)
	}
	traffic.stop()
	traffic.work.Wait()

	counts := countIDs(server.take(t, queue))
	for _, id := range traffic.confirmed {
		if counts[id] != 1 {
			t.Errorf("%s was confirmed, and is there %d times", id, counts[id])
		}
	}
	t.Logf("%d of %d confirmed, %d in the queue", len(traffic.confirmed), traffic.next, len(counts))
}

// A message that was given up is published again with the same ID while the first is still in flight: the return of the
// first is not taken for one of the second.
func testFrozenBroker(t *testing.T, server rabbitMQ) {
	queue := server.queue(t, nil)
	p := newPublisher(t, server, amqp.PublisherConfig{Channels: 1})
	must(t, publish(t, p, newEvent(1, queue)))
	must(t, server.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Publish(ctx, newEvent(2, "no-such-"+queue)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	again := make(chan error, 1)
	go func() { again <- publish(t, p, newEvent(2, queue)) }()
	must(t, server.Resume())
	must(t, <-again)
	if counts := countIDs(server.take(t, queue)); len(counts) != 2 || counts["event-2"] != 1 {
		t.Errorf("messages %v", counts)
	}

	// Close does not wait for a broker that does not answer, and what is in flight fails.
	must(t, server.Pause())
	go func() { again <- publish(t, p, newEvent(3, queue)) }()
	if err := p.Close(); err == nil {
		t.Error("a frozen broker said goodbye")
	}
	err := await.Value(t, "the loss of what is in flight", again)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}

// Those who wait for a connection do not wait for longer than they may, and Close does not wait for the connection.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	p, err := amqp.NewPublisher(amqp.PublisherConfig{
		URL: "amqp://" + listener.Addr().String(), ConnectTimeout: 10 * await.Limit,
	})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Publish(ctx, newEvent(1, "topic")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	await.Return(t, "Close, while the connection is being made", func() { err = p.Close() })
	must(t, err)
}

// While the broker refuses, one attempt to connect is the answer to many deliveries, and later there is another.
func TestFailedAttemptsAreShared(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	var attempts atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			attempts.Add(1)
			_ = conn.Close()
		}
	}()
	p, err := amqp.NewPublisher(amqp.PublisherConfig{URL: "amqp://" + listener.Addr().String()})
	must(t, err)
	defer p.Close()
	begun, shared := time.Now(), 0
	await.That(t, "there have been three attempts, and ten deliveries without one of their own", func() bool {
		before := attempts.Load()
		if err := publish(t, p, newEvent(1, "topic")); err == nil {
			t.Fatal("published")
		}
		if attempts.Load() == before {
			shared++
		}
		return before >= 3 && shared >= 10
	})
	if took := time.Since(begun); took < 500*time.Millisecond {
		t.Errorf("three attempts within %v", took)
	}
}
