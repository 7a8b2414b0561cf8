package brokers_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/store/sqlite"
)

const (
	topic = "charges"
	group = "mailer"
	// partitions is how many the topic has.
	partitions = 4
)

// kafkaBench is what a test of a consumer needs: brokers, a database, and a way to produce.
type kafkaBench struct {
	cluster  *kfake.Cluster
	store    *sqlite.Store
	producer *kgo.Client
}

func newKafkaBench(t *testing.T, options ...kfake.Opt) *kafkaBench {
	t.Helper()
	usual := []kfake.Opt{kfake.NumBrokers(3), kfake.SeedTopics(partitions, topic)}
	cluster, err := kfake.NewCluster(append(usual, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "consumer.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	err = store.Update(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `CREATE TABLE applied (n INTEGER PRIMARY KEY, event TEXT NOT NULL)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &kafkaBench{cluster: cluster, store: store}
	b.producer = b.client(t, kgo.NewClient,
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	return b
}

// quick makes a client notice at once what happens to its brokers and its group.
func quick() []kgo.Opt {
	return []kgo.Opt{
		kgo.HeartbeatInterval(20 * time.Millisecond),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 5 * time.Millisecond }),
	}
}

func (b *kafkaBench) client(t *testing.T, make func(...kgo.Opt) (*kgo.Client, error), options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := make(append(options, quick()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseAllowingRebalance)
	return client
}

// produce writes events to a partition.
func (b *kafkaBench) produce(t *testing.T, partition int32, ids ...string) {
	t.Helper()
	for _, id := range ids {
		record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(id)}
		if id != "" {
			record.Headers = []kgo.RecordHeader{{Key: "ce_id", Value: []byte(id)}}
		}
		if err := b.producer.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// config returns that of a consumer with a client of its own, which writes down what it applies.
func (b *kafkaBench) config(t *testing.T) kafka.ConsumerConfig {
	t.Helper()
	open := func(options ...kgo.Opt) (*kgo.Client, error) {
		return kafka.NewConsumerClient(b.cluster.ListenAddrs(), group, []string{topic}, options...)
	}
	return kafka.ConsumerConfig{
		Client: b.client(t, open), Inbox: inbox.New(b.store), Name: "mailer", Handle: applyKafka,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, Logger: quiet,
	}
}

// applyKafka writes a record down, in the transaction of the inbox.
func applyKafka(ctx context.Context, r *kgo.Record) error {
	_, err := onceward.Tx(ctx).ExecContext(ctx, `INSERT INTO applied (event) VALUES (?)`, string(r.Value))
	return err
}

// running is a consumer at work.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

func startKafka(t *testing.T, config kafka.ConsumerConfig) *running {
	t.Helper()
	c, err := kafka.NewConsumer(config)
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
	return await.Value(t, "the end of Run", r.ended)
}

// stop ends a consumer, which must not fail.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
}

// awaitCommitted waits until the group has committed all that is in the topic, or what is given for its partitions.
func (b *kafkaBench) awaitCommitted(t *testing.T, want ...int64) {
	t.Helper()
	if want == nil {
		for _, p := range b.cluster.PartitionInfos(topic) {
			want = append(want, p.HighWatermark)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	info, err := b.cluster.WaitGroupInfo(ctx, group, func(info *kfake.GroupInfo) bool {
		for p, offset := range want {
			if info == nil || info.Commits[topic][int32(p)].Offset < offset {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatalf("%v; committed: %+v", err, info)
	}
}

// applied returns what was applied, in order.
func (b *kafkaBench) applied(t *testing.T) (events []string) {
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

// expectOnce fails if not exactly the events p-0 to p-(n-1) of each partition p were applied, each once and in order.
func (b *kafkaBench) expectOnce(t *testing.T, n int) {
	t.Helper()
	next := make(map[string]int)
	for _, event := range b.applied(t) {
		partition, _, _ := strings.Cut(event, "-")
		if want := fmt.Sprintf("%s-%d", partition, next[partition]); event != want {
			t.Errorf("applied %s where %s is next", event, want)
		}
		next[partition]++
	}
	for p := range partitions {
		if got := next[fmt.Sprint(p)]; got != n {
			t.Errorf("partition %d: %d events applied, want %d", p, got, n)
		}
	}
}

// idsKafka returns the events from p-first to p-(last-1).
func idsKafka(p, first, last int) (all []string) {
	for n := first; n < last; n++ {
		all = append(all, fmt.Sprintf("%d-%d", p, n))
	}
	return all
}
