package amqp_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/onceward/onceward/broker/amqp"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store"
)

// send publishes messages with these IDs, each of which is also its body, and waits for the broker's confirms.
func send(t testing.TB, server rabbitMQ, queue string, ids ...string) {
	t.Helper()
	must(t, server.do(func(ch *amqp091.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		for _, id := range ids {
			message := amqp091.Publishing{MessageId: id, DeliveryMode: amqp091.Persistent, Body: []byte(id)}
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, message)
			if err != nil {
				return err
			}
			if !confirm.Wait() {
				return errors.New("not confirmed")
			}
		}
		return nil
	}))
}

// fakeStore is an [inbox.Store] in memory. Its transactions hold what they note until they end, and they hold effects.
type fakeStore struct {
	mu    sync.Mutex
	noted map[string]bool
	locks map[string]*sync.Mutex
	// effects are the bodies that were applied.
	effects []string
	// failures is how many transactions cannot begin.
	failures int
	// ended is told of each transaction's end.
	ended chan error
}

var _ inbox.Store = (*fakeStore)(nil)

func newFakeStore() *fakeStore {
	return &fakeStore{
		noted: make(map[string]bool), locks: make(map[string]*sync.Mutex), ended: make(chan error, 10_000),
	}
}

// fakeTx is a transaction of the fake.
type fakeTx struct {
	held    []*sync.Mutex
	noted   []string
	effects []string
}

type fakeTxKey struct{}

// apply is a handler that has the body of the message as its effect.
func apply(ctx context.Context, d *amqp091.Delivery) error {
	tx := ctx.Value(fakeTxKey{}).(*fakeTx)
	tx.effects = append(tx.effects, string(d.Body))
	return nil
}

// InTx runs work, and keeps what it did if it returns nil.
func (s *fakeStore) InTx(ctx context.Context, work func(ctx context.Context) error) error {
	err := s.begin()
	if err == nil {
		tx := &fakeTx{}
		// The inbox hands over the transaction that it takes from the context, whatever it is.
		err = work(store.ContextWithTx(context.WithValue(ctx, fakeTxKey{}, tx), new(sql.Tx)))
		s.finish(tx, err == nil)
	}
	s.ended <- err
	return err
}

func (s *fakeStore) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == 0 {
		return nil
	}
	s.failures--
	return errors.New("the database is away")
}

func (s *fakeStore) finish(tx *fakeTx, commit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if commit {
		s.effects = append(s.effects, tx.effects...)
		for _, key := range tx.noted {
			s.noted[key] = true
		}
	}
	for _, each := range tx.held {
		each.Unlock()
	}
}

// RememberEvent notes an event in the transaction of the context.
func (s *fakeStore) RememberEvent(ctx context.Context, _ *sql.Tx, consumer, eventID string) (bool, error) {
	tx, key := ctx.Value(fakeTxKey{}).(*fakeTx), consumer+" "+eventID
	s.mu.Lock()
	lock := s.locks[key]
	if lock == nil {
		lock = &sync.Mutex{}
		s.locks[key] = lock
	}
	s.mu.Unlock()
	lock.Lock()
	tx.held = append(tx.held, lock)
	s.mu.Lock()
	defer s.mu.Unlock()
	tx.noted = append(tx.noted, key)
	return !s.noted[key], nil
}

// PurgeEvents is not used here.
func (s *fakeStore) PurgeEvents(context.Context, time.Duration, int) (int, error) { return 0, nil }

// ConsumedEvents is not used here.
func (s *fakeStore) ConsumedEvents(context.Context, string) ([]inbox.Consumption, error) {
	return nil, nil
}

// applied returns what was applied, in order.
func (s *fakeStore) applied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.effects))
}

// start runs a consumer until stop is called, at the end of the test at the latest.
func start(t testing.TB, server rabbitMQ, store *fakeStore, config amqp.ConsumerConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	wait := startUntil(ctx, t, server, store, config)
	stop = sync.OnceFunc(func() {
		cancel()
		wait()
	})
	t.Cleanup(stop)
	return stop
}

// startUntil runs a consumer until the context ends, and returns a function that waits for the end of Run.
func startUntil(
	ctx context.Context, t testing.TB, server rabbitMQ, store *fakeStore, config amqp.ConsumerConfig,
) (wait func()) {
	t.Helper()
	config.URL, config.Inbox, config.Name = server.URL(), inbox.New(store), "tester"
	config.Logger = slog.New(slog.DiscardHandler)
	if config.Handle == nil {
		config.Handle = apply
	}
	if config.MinBackoff == 0 {
		config.MinBackoff, config.MaxBackoff = time.Millisecond, 500*time.Millisecond
	}
	c, err := amqp.NewConsumer(config)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() {
		if err := await.Value(t, "the end of Run", ended); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}
