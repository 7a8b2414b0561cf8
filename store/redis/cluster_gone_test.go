package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
)

// overdue makes records whose leases ran out, on all nodes.
func overdue(t testing.TB, s store.Store, n int) {
	t.Helper()
	for i := range n {
		r := booking(fmt.Sprint("overdue", i))
		r.Lease = time.Millisecond
		_, err := s.Reserve(t.Context(), r)
		must(t, err)
	}
	time.Sleep(2 * time.Millisecond) // the clock of the servers is that of this machine
}

// TestClusterReplicaGone: without one of the replicas, and while another one does not answer, everything goes on at once,
// for a store that is open and for one that is opened then.
func TestClusterReplicaGone(t *testing.T) {
	t.Parallel()
	cluster := servers.NewRedisCluster(t, "cluster-node-timeout 30000") // no node is told that it is gone
	opening := time.Now()
	s := open(t, cluster.URL())
	overdue(t, s, 30)
	usual := time.Since(opening) // about as much as is timed below, on the same busy machine
	must(t, cluster.Nodes()[4].Kill())
	must(t, cluster.Nodes()[5].Pause())
	begun := time.Now()
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
	other := open(t, cluster.URL())
	if took := time.Since(begun); took > 5*time.Second+4*usual {
		t.Errorf("a replica that does not answer held all of that up for %s", took)
	}
	if rec := look(t, other, "overdue0"); rec.State != store.StateUnknown {
		t.Errorf("the record is %s, want unknown", rec.State)
	}
	if n, err := other.Sweep(t.Context(), 100); err != nil || n != 0 {
		t.Errorf("%d records were swept again: %v", n, err)
	}
}

// TestClusterPrimaryGone: without one of the primaries, and before another one takes over, the other nodes' records are
// swept, if the cluster is told to go on without.
func TestClusterPrimaryGone(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a cluster is slow to start and to fail over")
	cluster := servers.NewRedisCluster(t, "cluster-node-timeout 30000", "cluster-require-full-coverage no")
	s := open(t, cluster.URL())
	overdue(t, s, 30)
	must(t, cluster.Nodes()[0].Kill())
	swept := 0
	for range 3 {
		n, err := s.Sweep(t.Context(), 100)
		swept += n
		if err == nil {
			t.Error("all records are said to have been looked at")
		}
	}
	left := 0
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		rec, err := s.Get(ctx, store.ID{Scope: "alice", Key: fmt.Sprint("overdue", i)})
		cancel()
		switch {
		case err != nil:
			wantUnavailable(t, err, "a record of the primary that is gone")
			left++
		case rec.State != store.StateUnknown:
			t.Errorf("a record of another primary is %s after a sweep", rec.State)
		}
	}
	if left == 0 || left+swept != 30 {
		t.Errorf("%d of 30 records were swept, and %d are out of reach", swept, left)
	}
}

// TestClusterSlotUnserved: records in a slot that no node serves do not keep others from being swept, by a store that knows
// no node for the slot.
func TestClusterSlotUnserved(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a cluster is slow to start and to fail over")
	cluster := servers.NewRedisCluster(t, "cluster-require-full-coverage no")
	const records = 100
	overdue(t, open(t, cluster.URL()), records)
	slot, unserved := slotOf(t, cluster, recordKey(t, cluster, "onceward", "overdue7")), 0
	for _, key := range keysIn(t, cluster) {
		if strings.Contains(key, ":h:") && slotOf(t, cluster, key) == slot {
			unserved++
		}
	}
	owner, err := cluster.Primary(t.Context(), slot)
	must(t, err)
	for _, node := range append([]*servers.RedisServer{owner}, cluster.Nodes()...) { // the owner first: it tells the others
		_, err := node.Do(t.Context(), "CLUSTER", "DELSLOTS", fmt.Sprint(slot))
		if err != nil && !strings.Contains(err.Error(), "already unassigned") {
			t.Fatal(err)
		}
	}
	n, err := open(t, cluster.URL()).Sweep(t.Context(), 100)
	wantUnavailable(t, err, "a sweep without a slot")
	if n != records-unserved {
		t.Errorf("%d of %d records were swept, where %d are in a slot that is not served", n, records, unserved)
	}
}

// TestClusterPrimaryFrozen freezes a primary while clients pay, and lets it go on when its replica has taken over: what
// it still takes for what it was is lost, and nothing else.
func TestClusterPrimaryFrozen(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "a cluster is slow to start and to fail over")
	cluster := servers.NewRedisCluster(t)
	c := newCrowd(t, open(t, cluster.URL()))
	c.start(8)
	c.more(t, 100)
	two := span{from: time.Now()}
	must(t, cluster.AwaitReplicas(t.Context()))
	frozen := cluster.Nodes()[0]
	must(t, frozen.Pause())
	eventually(t, "the replica has taken over", func() error {
		info, err := cluster.Nodes()[3].Info(t.Context())
		if err == nil && info["role"] != "master" {
			err = errors.New(info["role"])
		}
		return err
	})
	must(t, frozen.Resume())
	must(t, cluster.AwaitReady(t.Context()))
	eventually(t, "the old primary follows", func() error {
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
