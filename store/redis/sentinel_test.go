package redis_test

import (
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

// TestStoreOnSentinel runs with writes that wait for the replica.
func TestStoreOnSentinel(t *testing.T) {
	t.Parallel()
	r := servers.NewRedisSentinel(t)
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance {
			return instance(t, r.URL(), r.Name(t), redis.WithReplicas(1, 5*time.Second))
		},
		Groups: servers.UnlessAllStores("Repeats", "Content", "Waiter"),
	})
}

// TestSentinelFailOver kills the primary while clients pay, and has an operator go back to it: no outcome is invented,
// nothing is done twice but for what Redis forgot, and all are served again.
func TestSentinelFailOver(t *testing.T) {
	t.Parallel()
	r := servers.NewRedisSentinel(t)
	c := newCrowd(t, open(t, r.URL()))
	c.start(8)
	c.more(t, 100)
	primary, err := r.Primary(t.Context())
	must(t, err)
	killed := span{from: time.Now()}
	must(t, r.AwaitReplicas(t.Context()))
	must(t, primary.Kill())
	killed.to = time.Now()
	next, err := r.AwaitPrimary(t.Context())
	must(t, err)
	if next == primary {
		t.Fatal("the primary was not replaced")
	}
	c.more(t, 100)
	must(t, primary.Restart())
	must(t, r.AwaitReady(t.Context()))

	// For a moment there are two primaries, and what the old one takes then is lost, but if it takes no more without a
	// replica.
	for _, node := range r.Nodes() {
		_, err := node.Do(t.Context(), "CONFIG", "SET", "min-replicas-to-write", "1")
		must(t, err)
	}
	two := span{from: time.Now()}
	must(t, r.AwaitReplicas(t.Context()))
	must(t, r.FailOver(t.Context()))
	must(t, r.AwaitReady(t.Context()))
	two.to = time.Now()
	c.more(t, 100)
	n, err := r.FailOvers(t.Context())
	must(t, err)
	if n > 2 {
		t.Log("the sentinels replaced a primary of their own accord, perhaps by one that had just come back")
		two.from = killed.to
	}
	c.check(t, killed, two)
}
