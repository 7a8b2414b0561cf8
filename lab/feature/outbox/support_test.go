package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/watchdog"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(watchdog.Settling(m)) }

// topic is that of most messages of the tests.
const topic = "charges"

var (
	errDown = fmt.Errorf("%w: the test pulled the plug", store.ErrUnavailable)
	quiet   = slog.New(slog.DiscardHandler)
)

// bench is a store on a file, and an outbox in it.
type bench struct {
	*testing.T
	store *sqlite.Store
	box   *outbox.Outbox
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t}
	var err error
	b.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "outbox.db"))
	b.must(err)
	t.Cleanup(func() { _ = b.store.Close() })
	b.box, err = outbox.New(b.store, outbox.Config{Source: "https://shop.example", Guard: b.newGuard()})
	b.must(err)
	return b
}

// inTime runs a test whose time passes only while everybody waits. The store's clock is the same.
func inTime(t *testing.T, test func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(newBench(t)) })
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// about is a message about an aggregate; without one it waits for no other. Its type is its name in the tests.
func about(aggregate, name string) outbox.Message {
	return outbox.Message{
		Topic: topic, AggregateType: "payment", AggregateID: aggregate, Type: name, Payload: []byte(`{}`),
	}
}

// add commits messages in one transaction, and returns their IDs.
func (b *bench) add(messages ...outbox.Message) (ids []string) {
	b.Helper()
	b.must(b.store.InTx(b.Context(), func(ctx context.Context) error {
		ids = nil
		for _, m := range messages {
			id, err := b.box.Add(ctx, onceward.Tx(ctx), m)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	}))
	return ids
}

func (b *bench) entry(id string) outbox.Entry {
	b.Helper()
	found, err := b.store.Messages(b.Context(), outbox.Filter{ID: id})
	if err != nil || len(found) != 1 {
		b.Fatalf("there are %d messages %s, %v", len(found), id, err)
	}
	return found[0]
}

// wantStates checks where messages stand.
func (b *bench) wantStates(rule string, ids []string, want ...outbox.State) {
	b.Helper()
	for i, id := range ids {
		if e := b.entry(id); e.State != want[i] {
			b.Errorf("%s: %s is %s after %d tries (%s), want %s", rule, e.Type, e.State, e.Attempts, e.LastError, want[i])
		}
	}
}

// worker returns a worker over a store, with one route unless there are several.
func (b *bench) worker(store outbox.Store, route outbox.Route, configure ...func(*outbox.WorkerConfig)) *outbox.Worker {
	b.Helper()
	config := outbox.WorkerConfig{Routes: map[string]outbox.Route{topic: route}, Logger: quiet}
	for _, f := range configure {
		f(&config)
	}
	w, err := outbox.NewWorker(store, config)
	b.must(err)
	return w
}

// watched makes an observer that of the worker.
func watched(j *journal) func(*outbox.WorkerConfig) {
	return func(c *outbox.WorkerConfig) { c.Observer = j }
}

// run delivers what is due.
func (b *bench) run(w *outbox.Worker, want outbox.Report) {
	b.Helper()
	if got, err := w.RunOnce(b.Context()); err != nil || got != want {
		b.Errorf("a run came to %+v, %v, want %+v", got, err, want)
	}
}

// start lets a worker run until the returned function has stopped it.
func (b *bench) start(w *outbox.Worker) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := w.Run(ctx); err != nil {
			b.Error(err)
		}
	}()
	return func() {
		cancel()
		<-over
	}
}

// clerk is a handler that notes what was delivered to it. Without a function it succeeds.
type clerk struct {
	does outbox.Handler

	mu   sync.Mutex
	seen []string
}

func (c *clerk) deliver(ctx context.Context, d *outbox.Delivery) (outbox.Result, error) {
	c.mu.Lock()
	c.seen = append(c.seen, d.Type)
	c.mu.Unlock()
	if c.does == nil {
		return outbox.Result{}, nil
	}
	return c.does(ctx, d)
}

func (c *clerk) deliveries() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.seen...)
}

// want checks which messages were delivered, in their order.
func (c *clerk) want(t testing.TB, rule, want string) {
	t.Helper()
	if got := strings.Join(c.deliveries(), " "); got != want {
		t.Errorf("%s: delivered %q, want %q", rule, got, want)
	}
}

// wantEach checks how often each message was delivered.
func (c *clerk) wantEach(t testing.TB, rule string, want map[string]int) {
	t.Helper()
	got := make(map[string]int)
	for _, name := range c.deliveries() {
		got[name]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: delivered %v, want %v", rule, got, want)
	}
}

// fails is a handler that fails for the messages of these names.
func fails(err error, names ...string) outbox.Handler {
	return func(_ context.Context, d *outbox.Delivery) (outbox.Result, error) {
		for _, name := range names {
			if d.Type == name {
				return outbox.Result{}, err
			}
		}
		return outbox.Result{}, nil
	}
}

// journal collects what an observer is told.
type journal struct {
	mu     sync.Mutex
	events []outbox.DeliveredEvent
}

func (j *journal) Observe(_ context.Context, e onceward.ObserverEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e.(outbox.DeliveredEvent))
}

func (j *journal) want(t testing.TB, rule, want string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	var words []string
	for _, e := range j.events {
		words = append(words, e.Outcome)
	}
	if got := strings.Join(words, ", "); got != want {
		t.Errorf("%s: the observer was told %q, want %q", rule, got, want)
	}
}

// exec runs a statement in a transaction of the application.
func exec(ctx context.Context, statement string, args ...any) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, statement, args...)
	return err
}

// createBook makes a table of the application.
func (b *bench) createBook() {
	b.Helper()
	b.must(b.store.InTx(b.Context(), func(ctx context.Context) error {
		return exec(ctx, `CREATE TABLE book (line TEXT NOT NULL)`)
	}))
}

// write writes a line into the application's table.
func write(ctx context.Context, line string) error {
	return exec(ctx, `INSERT INTO book (line) VALUES (?)`, line)
}

// wantLines checks what the application's table holds.
func (b *bench) wantLines(rule, want string) {
	b.Helper()
	var got string
	b.must(b.store.DB().QueryRowContext(b.Context(),
		`SELECT coalesce(group_concat(line, ' ' ORDER BY rowid), '') FROM book`).Scan(&got))
	if got != want {
		b.Errorf("%s: the book says %q, want %q", rule, got, want)
	}
}

// crash leaves behind what a worker does that took messages and died: leases that no worker holds, and that have run
// out.
func (b *bench) crash(limit int) {
	b.Helper()
	claimed, err := b.store.ClaimMessages(b.Context(), []outbox.ClaimRequest{{Topic: topic, Limit: limit}}, time.Second)
	if err != nil || len(claimed) == 0 {
		b.Fatalf("there was nothing to take: %v", err)
	}
	time.Sleep(2 * time.Second)
}
