package brokers_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/await"
)

// Records that were applied and whose offsets were never committed come again, and are not applied again.
func TestCommitsThatFail(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	refused := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1,
	})
	c := b.config(t)
	run := startKafka(t, c)
	b.awaitApplied(t, 5*partitions)
	run.stop(t)
	c.Client.CloseAllowingRebalance()
	refused.Remove()
	b.expectOnce(t, 5)

	run = startKafka(t, b.config(t))
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 5)
}

// awaitApplied waits until so many events have been applied: the group says nothing of it, as it commits nothing.
func (b *kafkaBench) awaitApplied(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	for len(b.applied(t)) < n {
		if ctx.Err() != nil {
			t.Fatalf("applied: %q", b.applied(t))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Members join and leave while events arrive: each is applied once, and none is left.
func TestRebalances(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	const rounds, events = 6, 5
	first := b.config(t)
	members := []*running{startKafka(t, first)}
	for round := range rounds {
		for p := range partitions {
			b.produce(t, int32(p), idsKafka(p, events*round, events*(round+1))...)
		}
		switch round {
		case 1, 2:
			members = append(members, startKafka(t, b.config(t)))
		case 4:
			members[0].stop(t)
			first.Client.CloseAllowingRebalance()
		}
	}
	b.awaitCommitted(t)
	for _, member := range members[1:] {
		member.stop(t)
	}
	b.expectOnce(t, rounds*events)
}

// All brokers go away in the middle and come back, and leaders move.
func TestBrokersRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newKafkaBench(t, kfake.DataDir(dir))
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	run := startKafka(t, b.config(t))
	b.awaitCommitted(t, 5, 0, 0, 0)
	var ports []int
	for _, address := range b.cluster.ListenAddrs() {
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	b.cluster.Close()
	again, err := kfake.NewCluster(kfake.Ports(ports...), kfake.DataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	b.cluster = again
	again.ShufflePartitionLeaders()
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 5, 10)...)
	}
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 10)
}
