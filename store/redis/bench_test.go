package redis_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/storetest"
	"github.com/redis/rueidis"
)

func BenchmarkStore(b *testing.B) {
	server := servers.NewRedis(b, "appendonly no")
	storetest.Bench(b, storetest.Harness{Open: func(t testing.TB) storetest.Instance {
		return instance(t, server.URL(), server.Name(t))
	}})
}

// BenchmarkRaw is the baseline: two SETs in place of reserve and complete, a GET in place of a replay, on the same
// client.
func BenchmarkRaw(b *testing.B) {
	server := servers.NewRedis(b, "appendonly no")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, AlwaysPipelining: true,
	})
	must(b, err)
	b.Cleanup(client.Close)
	value := strings.Repeat("x", 300)
	set := func(key string) error {
		return client.Do(b.Context(), client.B().Set().Key(key).Value(value).Build()).Error()
	}
	must(b, set("key"))
	for name, do := range map[string]func(i int64) error{
		"TwoSets": func(i int64) error {
			if err := set(fmt.Sprint("key-", i)); err != nil {
				return err
			}
			return set(fmt.Sprint("key-", i))
		},
		"Get": func(int64) error { return client.Do(b.Context(), client.B().Get().Key("key").Build()).Error() },
	} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				var next atomic.Int64
				var running sync.WaitGroup
				for range callers {
					running.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if err := do(i); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				running.Wait()
			})
		}
	}
}
