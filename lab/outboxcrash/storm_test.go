package outboxcrash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/outbox"
)

// storm is how much is sent, and how often what is killed meanwhile.
type storm struct {
	messages, accounts, workers int
	// amqp says that messages flow to RabbitMQ too, which takes as long to start as a small storm lasts.
	amqp bool
	// kills is how often workers are killed, at least, and restarts how often each broker is restarted.
	kills, restarts int
}

// stormVariable is the size of the storm on PostgreSQL in messages, as make test-storm sets it.
const stormVariable = "ONCEWARD_TEST_STORM"

// TestStormOnPostgreSQL is I10: workers are killed and brokers restarted at random while messages flow to Kafka, NATS,
// RabbitMQ and by HTTP. Every committed message is delivered, in order within its aggregate, and applied once; none
// that was rolled back ever appears. All that is killed and restarted is so while the first messages flow. On every
// change a few messages flow, and none to RabbitMQ. `make test-storm` lets 10,000 flow, and kills and restarts twice as
// often as `make test-all`.
//
// The storms are not parallel: each keeps both processors of a small machine busy.
func TestStormOnPostgreSQL(t *testing.T) {
	s := nightly.Either(
		storm{messages: 1000, workers: 4, kills: 12, restarts: 1, amqp: true},
		storm{messages: 200, workers: 2, kills: 4, restarts: 1})
	if large := os.Getenv(stormVariable); large != "" {
		messages, err := strconv.Atoi(large)
		must(t, err)
		s = storm{messages: messages, workers: 4, kills: 24, restarts: 2, amqp: true}
	}
	s.accounts = s.messages / 20
	s.blow(t, newWorld(t, "postgres"))
}

// TestStormOnSQLite is the same, smaller, because all processes share one writer.
func TestStormOnSQLite(t *testing.T) {
	nightly.Only(t, "there is a small storm on PostgreSQL")
	w := newWorld(t, "sqlite")
	storm{messages: 600, accounts: 30, workers: 2, kills: 6, restarts: 1, amqp: true}.blow(t, w)
}

func (s storm) blow(t *testing.T, w *world) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	kafka, seeds := w.startKafka()
	nats, natsURL := w.startNATS()
	receiver := w.receives(nil)
	receiver.withholds.Store(true) // one worker at least is killed between a delivery and its record
	brokers := []broker{kafka, nats, {"http", receiver.restart}}
	settings := workerSettings{Kafka: seeds, NATS: natsURL, HTTP: receiver.url(), Limit: 100_000}
	if s.amqp {
		var rabbit broker
		rabbit, settings.AMQP, settings.Queue = w.startAMQP()
		brokers = append(brokers, rabbit)
	}

	var nemesis sync.WaitGroup
	added := make(chan struct{})
	errs := make(chan error, s.workers+len(brokers))
	var kills, restarts atomic.Int64
	for i := range s.workers {
		nemesis.Go(func() { errs <- s.tormentWorker(w, settings, rand.New(rand.NewPCG(seed, uint64(i))), added, &kills) })
	}
	for i, b := range brokers {
		nemesis.Go(func() { errs <- s.tormentBroker(b, rand.New(rand.NewPCG(seed, 100+uint64(i))), &restarts) })
	}
	err := s.add(t.Context(), w, rand.New(rand.NewPCG(seed, 1000)))
	close(added)
	must(t, err)
	nemesis.Wait()
	close(errs)
	for err := range errs {
		must(t, err)
	}
	t.Logf("%d workers were killed and %d brokers restarted", kills.Load(), restarts.Load())
	s.settle(t, w, settings)
	s.check(t, w)
	if repetitions := receiver.duplicates.Load(); repetitions == 0 {
		t.Error("no delivery by HTTP was a repetition: the workers were killed to no effect")
	} else {
		t.Logf("%d deliveries by HTTP were repetitions", repetitions)
	}
}

// add commits so many messages, from several goroutines at once; one in ten transactions is rolled back.
func (s storm) add(ctx context.Context, w *world, random *rand.Rand) error {
	topics := []string{"kafka", "nats", "http"}
	if s.amqp {
		topics = append(topics, "amqp")
	}
	type order struct {
		account int
		undone  bool
	}
	orders := make(chan order)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			var failed error
			for o := range orders {
				if err := w.adds(ctx, topics[o.account%len(topics)], fmt.Sprintf("account %d", o.account), o.undone); err != nil {
					failed = err
				}
			}
			errs <- failed
		}()
	}
	for i := 0; i < s.messages; {
		o := order{random.IntN(s.accounts), random.IntN(10) == 0}
		orders <- o
		if !o.undone {
			i++
		}
	}
	close(orders)
	var first error
	for range cap(errs) {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// tormentWorker lets a worker work, kills it, and starts the next, so often; the last one stays until everything has
// been added.
func (s storm) tormentWorker(w *world, settings workerSettings, random *rand.Rand, added <-chan struct{}, kills *atomic.Int64) error {
	for range s.kills / s.workers {
		p, err := w.starts(settings)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(200+random.IntN(1000)) * time.Millisecond)
		if err := p.Kill(); err != nil {
			return err
		}
		kills.Add(1)
	}
	p, err := w.starts(settings)
	if err != nil {
		return err
	}
	<-added
	kills.Add(1)
	return p.Kill()
}

// tormentBroker restarts a broker now and then.
func (s storm) tormentBroker(b broker, random *rand.Rand, restarts *atomic.Int64) error {
	for range s.restarts {
		time.Sleep(time.Duration(500+random.IntN(2500)) * time.Millisecond)
		if err := b.restart(); err != nil {
			return fmt.Errorf("restart %s: %w", b.name, err)
		}
		restarts.Add(1)
	}
	return nil
}

// settle lets workers work in peace until nothing waits.
func (s storm) settle(t *testing.T, w *world, settings workerSettings) {
	for range s.workers {
		p, err := w.starts(settings)
		must(t, err)
		defer func() { must(t, p.End(await.Limit)) }()
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.describe()
		}
	})
	w.awaitsAll("the next message has left the outbox", func() (left int) {
		stats, err := w.store.MessageStats(t.Context())
		must(t, err)
		return stats.Waiting
	})
	w.awaitsAll("the next message is applied", func() (left int) {
		return s.messages - w.number(`SELECT count(*) FROM applied`)
	})
}

// describe tells what still waits, for people who have to find out why.
func (w *world) describe() {
	waiting, err := w.store.Messages(context.Background(), outbox.Filter{States: []outbox.State{outbox.StateReady, outbox.StateLeased, outbox.StateBehind}, Limit: 20})
	w.Logf("at %s these wait (%v):", time.Now().UTC().Format(time.TimeOnly), err)
	for _, e := range waiting {
		w.Logf("%s %s %s %s, due %s, %d attempts: %s", e.ID, e.Topic, e.AggregateID, e.State, e.Due.Format(time.TimeOnly), e.Attempts, e.LastError)
	}
}

func (s storm) check(t *testing.T, w *world) {
	committed, applied := w.changes()
	total := 0
	for account, n := range committed {
		total += n
		got := applied[account]
		for i := range max(n, len(got)) {
			if i >= len(got) || i >= n || got[i] != i+1 {
				t.Errorf("%s had %d changes, and these were applied, in this order: %v", account, n, got)
				break
			}
		}
	}
	if total != s.messages {
		t.Errorf("%d messages were committed, want %d", total, s.messages)
	}
	if undone := w.number(`SELECT count(*) FROM applied WHERE undone = 1`); undone != 0 {
		t.Errorf("%d messages appeared whose transaction was rolled back", undone)
	}
	if len(applied) != len(committed) {
		t.Errorf("changes of %d accounts were applied, want %d", len(applied), len(committed))
	}
	stats, err := w.store.MessageStats(t.Context())
	must(t, err)
	if stats != (outbox.Stats{}) {
		t.Errorf("in the end the outbox holds %+v", stats)
	}
}
