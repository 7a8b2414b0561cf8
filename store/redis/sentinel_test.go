package redis_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

// newSentinel starts a primary, a replica and sentinels that replace no primary unless the test asks, however busy
// the machine is.
func newSentinel(t *testing.T) *servers.RedisSentinel {
	t.Helper()
	r := servers.NewRedisSentinel(t)
	for _, s := range r.Sentinels() {
		_, err := s.Do(t.Context(), "SENTINEL", "SET", "main", "down-after-milliseconds", "3600000",
			"failover-timeout", "3600000")
		must(t, err)
	}
	return r
}

// failOver has the sentinels promote the replica, and waits until all of them agree. A sentinel whose last look at the
// replica is a second old, as on a machine that stands still, gives a fail-over up: then it is asked again.
func failOver(t *testing.T, r *servers.RedisSentinel) (next *servers.RedisServer) {
	t.Helper()
	old, err := r.Primary(t.Context())
	must(t, err)
	await.That(t, "there is another primary", func() bool {
		reply, err := r.Sentinels()[0].Do(t.Context(), "SENTINEL", "MASTER", "main")
		must(t, err)
		state := make(map[any]any)
		for fields := range slices.Chunk(reply.([]any), 2) {
			state[fields[0]] = fields[1]
		}
		if net.JoinHostPort(fmt.Sprint(state["ip"]), fmt.Sprint(state["port"])) == old.Addr() {
			if !strings.Contains(fmt.Sprint(state["flags"]), "failover_in_progress") {
				_, _ = r.Sentinels()[0].Do(t.Context(), "SENTINEL", "FAILOVER", "main") // it may not know a good replica yet
			}
			return false
		}
		next, err = r.Primary(t.Context())
		return err == nil && next != old
	})
	next, err = r.AwaitPrimary(t.Context())
	must(t, err)
	return next
}

// TestStoreOnSentinel runs with writes that wait for the replica.
func TestStoreOnSentinel(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts sentinels, and each write waits for the replica; TestReplicaHangs has such writes")
	r := newSentinel(t)
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) storetest.Instance {
			return instance(t, r.URL(), r.Name(t), redis.WithReplicas(1, acknowledged))
		},
	})
}

// TestSentinelFailOver kills the primary while clients pay, and has an operator go back to it: no outcome is invented,
// nothing is done twice but for what Redis forgot, and all are served again.
func TestSentinelFailOver(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts sentinels, which take seconds for a fail-over; TestServerKilled has one server")
	r := newSentinel(t)
	c := newCrowd(t, open(t, r.URL()))
	c.start(8)
	c.more(t, 100)
	primary, err := r.Primary(t.Context())
	must(t, err)
	killed := span{from: time.Now()}
	must(t, r.AwaitReplicas(t.Context()))
	must(t, primary.Kill())
	killed.to = time.Now()
	failOver(t, r)
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
	failOver(t, r)
	must(t, r.AwaitReady(t.Context()))
	two.to = time.Now()
	c.more(t, 100)
	c.check(t, killed, two)
}
