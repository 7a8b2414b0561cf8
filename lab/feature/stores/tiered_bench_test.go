package stores_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sys/unix"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/memory"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/tiered"
)

// booking asks for a key with a nonce of its own.
func booking(key string) *store.Reservation {
	r := &store.Reservation{
		ID: store.ID{Scope: "acme", Key: key}, Operation: "POST /payments",
		Fingerprints: []store.Fingerprint{{Secret: 1, Rules: 1, Sum: [32]byte{1}}}, Lease: time.Minute, Retention: time.Hour,
	}
	_, _ = rand.Read(r.Nonce[:])
	return r
}

func completionOf(body string) *store.Completion {
	return &store.Completion{Response: store.Response{
		Status: 201, Header: []store.HeaderField{{Name: "Content-Type", Value: "application/json"}}, Body: []byte(body),
	}}
}

// execute reserves and completes.
func execute(ctx context.Context, s store.Store, key, body string) error {
	v, err := s.Reserve(ctx, booking(key))
	if err == nil && v.Decision != store.DecisionExecute {
		err = fmt.Errorf("reserve got %s", v.Decision)
	}
	if err == nil {
		_, err = s.Complete(ctx, store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}, completionOf(body))
	}
	return err
}

// callers makes b.N calls by so many callers.
func callers(b *testing.B, n int, call func(i int64) error) {
	b.Helper()
	b.SetParallelism((n + 1) / 2)
	var next atomic.Int64
	used := processorTime()
	defer func() { b.ReportMetric(float64(processorTime()-used)/float64(b.N), "cpu-ns/op") }()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call(next.Add(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// processorTime is what this process has used: on a busy machine it says more than the clock.
func processorTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkReplay compares a replay through the front with a plain GET of a value of that size.
func BenchmarkReplay(b *testing.B) {
	const keys = 1000
	server := servers.NewRedis(b, "appendonly no", "maxmemory-policy allkeys-lru")
	ctx := context.Background()
	body := strings.Repeat("x", 200)
	var count counter
	front := openFront(b, server.URL(), "bench")
	s, err := tiered.New(memory.New(), front, tiered.Config{MaxAge: time.Hour, Logger: quiet, Observer: &count})
	must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	name := func(i int64) string { return fmt.Sprintf("0190b5f2-7c3a-7def-8abc-%012d", i%keys) }
	var retries [keys]*store.Reservation
	for i := range int64(keys) {
		must(b, execute(ctx, s, name(i), body))
		retries[i] = booking(name(i))
		_, err := s.Reserve(ctx, retries[i])
		must(b, err)
	}
	value, err := front.Get(ctx, store.ID{Scope: "acme", Key: name(0)})
	must(b, err)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, AlwaysPipelining: true, ForceSingleClient: true,
		PipelineMultiplex: 1,
	})
	must(b, err)
	b.Cleanup(client.Close)
	var names [keys]string
	for i := range int64(keys) {
		names[i] = plain(name(i))
		must(b, client.Do(ctx, client.B().Set().Key(names[i]).Value(string(value)).Build()).Error())
	}
	b.Run("GET", func(b *testing.B) {
		callers(b, 64, func(i int64) error { return client.Do(ctx, client.B().Get().Key(names[i%keys]).Build()).Error() })
	})
	b.Run("tiered", func(b *testing.B) {
		hits := count.hits.Load()
		callers(b, 64, func(i int64) error {
			_, err := s.Reserve(ctx, retries[i%keys])
			return err
		})
		b.ReportMetric(100*float64(count.hits.Load()-hits)/float64(b.N), "%hits")
	})
}

// plain is a name as long as that of an entry of the front.
func plain(name string) string { return "bench:front:" + name[:32] }

// BenchmarkTieredFirst compares a first execution behind a front with one on PostgreSQL alone.
func BenchmarkTieredFirst(b *testing.B) {
	ctx := context.Background()
	server := servers.NewRedis(b, "appendonly no", "maxmemory-policy allkeys-lru")
	for _, fronted := range []bool{false, true} {
		name := "PostgreSQL"
		if fronted {
			name = "tiered"
		}
		b.Run(name, func(b *testing.B) {
			durable, err := postgres.Open(ctx, servers.Postgres(b).SchemaURL(b)+"&pool_max_conns=16", postgres.WithLogger(quiet))
			must(b, err)
			var s store.Store = durable
			if fronted {
				s, err = tiered.New(durable, openFront(b, server.URL(), "bench"), tiered.Config{Logger: quiet})
				must(b, err)
			}
			b.Cleanup(func() { must(b, s.(interface{ Close() error }).Close()) })
			run := rand.Text()
			callers(b, 16, func(i int64) error { return execute(ctx, s, fmt.Sprint(run, i), strings.Repeat("x", 200)) })
		})
	}
}
