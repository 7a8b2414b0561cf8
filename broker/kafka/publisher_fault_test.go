package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/broker/kafka"
	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/outbox"
)

// O2: the events of an aggregate stay in order, each is there once, while leaders move, brokers refuse, and answers say
// that a write failed which did not.
func TestOrderUnderFaults(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	const aggregates, events = 8, 20
	produce := []kmsg.Key{kmsg.Produce}
	cluster.Fault(
		kfake.Fault{Keys: produce, Err: kerr.RequestTimedOut, Count: 5},
		kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicasAfterAppend, Count: 5},
		kfake.Fault{Keys: produce, Err: kerr.NotLeaderForPartition, Count: 5},
	)
	p := newPublisher(t, cluster, kafka.PublisherConfig{})
	var publishers sync.WaitGroup
	for a := range aggregates {
		publishers.Go(func() {
			for n := range events {
				if a == 0 && n%5 == 0 {
					cluster.ShufflePartitionLeaders()
				}
				if err := p.Publish(t.Context(), event(strconv.Itoa(a), n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	publishers.Wait()
	if got := written(cluster, "charges"); got != aggregates*events {
		t.Errorf("%d records, want %d", got, aggregates*events)
	}
	next := make(map[string]int)
	for _, record := range read(t, cluster, "charges", aggregates*events) {
		aggregate, n, _ := strings.Cut(headers(t, record)["ce_id"], "-")
		if n != strconv.Itoa(next[aggregate]) {
			t.Fatalf("aggregate %s: event %s where %d is next", aggregate, n, next[aggregate])
		}
		next[aggregate]++
	}
}

// A delivery that waits while all brokers are away is confirmed when they are back.
func TestBrokersRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ports := kfake.Ports(servers.FreePort(t), servers.FreePort(t), servers.FreePort(t))
	cluster := newCluster(t, kfake.DataDir(dir), ports)
	p := newPublisher(t, cluster, kafka.PublisherConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()
	if err := p.Publish(ctx, event("a", 0)); err != nil {
		t.Fatal(err)
	}
	cluster.Close()
	confirmed := make(chan error, 1)
	go func() { confirmed <- p.Publish(ctx, event("a", 1)) }()

	again, err := kfake.NewCluster(ports, kfake.DataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	if err := <-confirmed; err != nil {
		t.Fatal(err)
	}
	for i, record := range read(t, again, "charges", 2) {
		if got, want := headers(t, record)["ce_id"], fmt.Sprintf("a-%d", i); got != want {
			t.Errorf("record %d is %s", i, got)
		}
	}
}

// A delivery whose time is up while the broker has the record is a failure at once. Further ones add no copies: they
// wait for the answer to the first.
func TestTimeIsUpBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	late := errors.New("the lease is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	answer := make(chan struct{})
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cancel(late)
		cluster.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	p := newPublisher(t, cluster, kafka.PublisherConfig{})
	err := p.Publish(ctx, event("a", 0))
	if !errors.Is(err, late) || errors.Is(err, outbox.ErrPermanent) {
		t.Fatal(err)
	}
	for range 3 {
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := p.Publish(short, event("a", 0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		stop()
	}
	close(answer)
	again, stop := context.WithTimeout(t.Context(), await.Limit)
	defer stop()
	// It is of the same partition, so that copies of the first would be before it. The first itself may have its answer
	// by now: to deliver it once more would be a copy.
	if err := p.Publish(again, event("a", 1)); err != nil {
		t.Fatal(err)
	}
	if got := written(cluster, "charges"); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
}

// While no broker can be reached, a delivery ends with its context.
func TestNoBroker(t *testing.T) {
	t.Parallel()
	cluster := newCluster(t)
	p := newPublisher(t, cluster, kafka.PublisherConfig{})
	cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := p.Publish(ctx, event("a", 0))
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, outbox.ErrPermanent) {
		t.Error(err)
	}
}
