package brokers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/inbox"
)

// O5: events that come twice are applied once, those of a partition in order, and the offsets follow.
func TestKafkaAppliesEachEventOnce(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	const events = 10
	for p := range partitions {
		for _, id := range idsKafka(p, 0, events) {
			b.produce(t, int32(p), id, id)
		}
	}
	run := startKafka(t, b.config(t))
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, events)
}

// M1: with each event the observer learns how many are behind it, also those that were not fetched with it.
func TestKafkaBacklogIsTold(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	b.produce(t, 0, idsKafka(0, 0, 5)...)
	c := b.config(t)
	c.MaxRecords = 2
	var told []int
	c.Observer = onceward.ObserverFunc(func(_ context.Context, e onceward.ObserverEvent) {
		told = append(told, e.(inbox.HandledEvent).Backlog)
	})
	run := startKafka(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	if want := []int{4, 3, 2, 1, 0}; !slices.Equal(told, want) {
		t.Errorf("told %d, want %d", told, want)
	}
}

// A consumer that starts again goes on where the last one has committed.
func TestGoesOnAfterRestart(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	for round := range 3 {
		for p := range partitions {
			b.produce(t, int32(p), idsKafka(p, 5*round, 5*round+5)...)
		}
		c := b.config(t)
		c.MaxRecords = 3
		run := startKafka(t, c)
		b.awaitCommitted(t)
		run.stop(t)
		c.Client.CloseAllowingRebalance()
	}
	b.expectOnce(t, 15)
}

// What is being applied when Run is to end is finished and committed, and nothing is begun after it.
func TestKafkaEndsGracefully(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	b.produce(t, 0, idsKafka(0, 0, 3)...)
	c := b.config(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		close(begun)
		<-finish
		return applyKafka(ctx, r)
	}
	run := startKafka(t, c)
	<-begun
	run.cancel()
	close(finish)
	if err := run.wait(t); err != nil {
		t.Fatal(err)
	}
	b.awaitCommitted(t, 1)
	if got := b.applied(t); len(got) != 1 {
		t.Errorf("applied: %q", got)
	}
}

// A handler that does not come to an end is interrupted after the grace, and leaves no trace.
func TestKafkaGraceIsBounded(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	b.produce(t, 0, "0-0")
	c := b.config(t)
	c.Grace = time.Millisecond
	begun := make(chan struct{})
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		if err := applyKafka(ctx, r); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	run := startKafka(t, c)
	<-begun
	run.stop(t)
	if got := b.applied(t); len(got) != 0 {
		t.Errorf("applied: %q", got)
	}
}

// A round that takes too long gives the rest of its records back, so that the group can rebalance.
func TestRoundsAreBounded(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	for p := range partitions {
		b.produce(t, int32(p), idsKafka(p, 0, 5)...)
	}
	c := b.config(t)
	c.MaxRound = 2 * time.Millisecond
	c.Handle = func(ctx context.Context, r *kgo.Record) error {
		time.Sleep(time.Millisecond) // a slow handler, of which a round has time for few
		return applyKafka(ctx, r)
	}
	commits := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Observe: true, Count: -1})
	defer commits.Remove()
	run := startKafka(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	b.expectOnce(t, 5)
	if commits.Hits() < 2 {
		t.Error("all was done in one round")
	}
}

func TestEventIDByConfig(t *testing.T) {
	t.Parallel()
	b := newKafkaBench(t)
	b.produce(t, 0, "a:1", "a:2", "b:1")
	c := b.config(t)
	c.EventID = func(r *kgo.Record) (string, error) {
		id, _, _ := strings.Cut(string(r.Value), ":")
		return id, nil
	}
	run := startKafka(t, c)
	b.awaitCommitted(t)
	run.stop(t)
	if got := fmt.Sprint(b.applied(t)); got != "[a:1 b:1]" {
		t.Errorf("applied: %s", got)
	}
}
