package stores_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/limit"
	"github.com/onceward/onceward/store/redis"
)

// BenchmarkSharedLimits compares operations on Redis under shared limits with those without, by 64 callers: the metric
// "ratio" is the throughput with limits over that without, measured by turns, of which it is the median.
func BenchmarkSharedLimits(b *testing.B) {
	const callers, turns = 64, 31
	server := servers.NewRedis(b, `save ""`, "appendonly no")
	s, err := redis.Open(b.Context(), server.URL(), redis.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	limiter, err := limit.New(limit.Config{
		Limits:   limit.Limits{NewKeys: limit.Rate{Limit: 10_000_000}, ActiveKeys: 100_000_000},
		Counters: s.Counters(), Logger: quiet,
	})
	if err != nil {
		b.Fatal(err)
	}
	var key atomic.Int64
	run := func(limiter onceward.Limiter, n int) time.Duration {
		guard, err := onceward.New(s, onceward.Config{Secret: []byte("the secret of the tests"), Logger: quiet, Limiter: limiter})
		if err != nil {
			b.Fatal(err)
		}
		var left atomic.Int64
		left.Store(int64(n))
		started := time.Now()
		var crowd sync.WaitGroup
		for range callers {
			crowd.Go(func() {
				for left.Add(-1) >= 0 {
					call := onceward.Call{Scope: "alice", Key: fmt.Sprint(key.Add(1)), Operation: "bench"}
					_, err := guard.Do(b.Context(), call, func(context.Context) ([]byte, error) { return nil, nil },
						onceward.Reserved(onceward.FailureUnknown))
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		crowd.Wait()
		return time.Since(started)
	}
	run(limiter, 1000)
	b.ResetTimer()
	part := max(b.N/turns, callers)
	ratios := make([]float64, turns)
	for i := range ratios {
		without, with := run(nil, part), run(limiter, part)
		ratios[i] = without.Seconds() / with.Seconds()
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[turns/2], "ratio")
}
