package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// ownCluster is why a test is nightly.
const ownCluster = "it starts a cluster of its own; TestStoreOnCluster runs on a shared one"

// calm makes a cluster that replaces no node unless a test asks for it, however busy the machine is.
const calm = "cluster-node-timeout 3600000"

// takeOver makes a replica the primary without a vote, as an operator does, and waits until all nodes agree.
func takeOver(t testing.TB, cluster *servers.RedisCluster, replica *servers.RedisServer) {
	t.Helper()
	_, err := replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER")
	must(t, err)
	await.Success(t, "the replica has taken over", func() error {
		info, err := replica.Info(t.Context())
		if err == nil && info["role"] != "master" {
			err = errors.New(info["role"])
		}
		return err
	})
}

// TestClusterReplicaGone: without one of the replicas, and while another one does not answer, every call succeeds, of a
// store that is open and of one that is opened then.
func TestClusterReplicaGone(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	s := open(t, cluster.URL(), usual)
	lapsed(t, s, 30, "overdue")
	must(t, cluster.Nodes()[4].Kill())
	must(t, cluster.Nodes()[5].Pause())
	for i := range 10 {
		booked(t, s, fmt.Sprint("key", i))
	}
	if n, err := s.Sweep(t.Context(), 100); n != 30 || err != nil {
		t.Errorf("%d of 30 records were swept: %v", n, err)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Records[store.StateUnknown] != 30 {
		t.Errorf("statistics: %+v, %v", stats, err)
	}
	if found, err := s.List(t.Context(), store.Filter{}); err != nil || len(found) != 40 {
		t.Errorf("%d of 40 records are listed: %v", len(found), err)
	}
	other := open(t, cluster.URL(), usual)
	if rec := look(t, other, "overdue0"); rec.State != store.StateUnknown {
		t.Errorf("the record is %s, want unknown", rec.State)
	}
	if n, err := other.Sweep(t.Context(), 100); err != nil || n != 0 {
		t.Errorf("%d records were swept again: %v", n, err)
	}
}

// TestClusterPrimaryGone: without one of the primaries, and before another one takes over, the other nodes' records are
// swept, if the cluster is configured to work without it.
func TestClusterPrimaryGone(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm, "cluster-require-full-coverage no")
	s := open(t, cluster.URL())
	const records = 30
	lapsed(t, s, records, "overdue")
	left := make(map[string]bool) // what the primary has that is killed
	for i := range records {
		key := fmt.Sprint("overdue", i)
		primary, err := cluster.Primary(t.Context(), slotOf(t, cluster, recordKey(t, cluster, "onceward", key)))
		must(t, err)
		if primary == cluster.Nodes()[0] {
			left[key] = true
		}
	}
	must(t, cluster.Nodes()[0].Kill())
	swept := 0
	await.That(t, "the records of the other nodes are swept", func() bool {
		n, err := s.Sweep(t.Context(), 100)
		swept += n
		if err == nil {
			t.Error("all records are said to have been looked at")
		}
		return swept >= records-len(left)
	})
	if swept != records-len(left) || len(left) == 0 {
		t.Errorf("%d of %d records were swept, and %d are out of reach", swept, records, len(left))
	}
	for i := range records {
		key := fmt.Sprint("overdue", i)
		if left[key] {
			err := tryFor(t, time.Second, func(ctx context.Context) error {
				_, err := s.Get(ctx, booking(key).ID)
				return err
			})
			wantUnavailable(t, err, "a record of the primary that is gone")
		} else if rec := look(t, s, key); rec.State != store.StateUnknown {
			t.Errorf("a record of another primary is %s after a sweep", rec.State)
		}
	}
}

// TestClusterSlotUnserved: records in a slot that no node serves do not keep others from being swept, by a store that knows
// no node for the slot.
func TestClusterSlotUnserved(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm, "cluster-require-full-coverage no")
	const records = 100
	lapsed(t, open(t, cluster.URL()), records, "overdue")
	slot, unserved := slotOf(t, cluster, recordKey(t, cluster, "onceward", "overdue7")), 0
	for _, key := range keysIn(t, cluster) {
		if strings.Contains(key, ":h:") && slotOf(t, cluster, key) == slot {
			unserved++
		}
	}
	owner, err := cluster.Primary(t.Context(), slot)
	must(t, err)
	for _, node := range append([]*servers.RedisServer{owner}, cluster.Nodes()...) { // the owner first, for the others
		_, err := node.Do(t.Context(), "CLUSTER", "DELSLOTS", fmt.Sprint(slot))
		if err != nil && !strings.Contains(err.Error(), "already unassigned") {
			t.Fatal(err)
		}
	}
	s, n := open(t, cluster.URL()), 0
	await.That(t, "the records of the other slots are swept", func() bool {
		swept, err := s.Sweep(t.Context(), 100)
		wantUnavailable(t, err, "a sweep without a slot")
		n += swept
		return n >= records-unserved
	})
	if n != records-unserved {
		t.Errorf("%d of %d records were swept, where %d are in a slot that is not served", n, records, unserved)
	}
}

// TestClusterPrimaryFrozen freezes a primary while clients pay, and resumes it when its replica has taken over: writes
// that it still accepts in its old role are lost, and nothing else.
func TestClusterPrimaryFrozen(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	c := newCrowd(t, open(t, cluster.URL(), usual))
	c.start(8)
	c.more(t, 100)
	two := span{from: time.Now()}
	must(t, cluster.AwaitReplicas(t.Context()))
	frozen := cluster.Nodes()[0]
	must(t, frozen.Pause())
	takeOver(t, cluster, cluster.Nodes()[3])
	must(t, frozen.Resume())
	must(t, cluster.AwaitReady(t.Context()))
	await.Success(t, "the old primary follows", func() error {
		info, err := frozen.Info(t.Context())
		if err == nil && info["role"] != "slave" {
			err = errors.New(info["role"])
		}
		return err
	})
	two.to = time.Now()
	c.more(t, 100)
	c.check(t, two)
}
