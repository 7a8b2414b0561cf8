package redis_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// replicated starts a primary and a replica.
func replicated(t *testing.T) (primary, replica *servers.RedisServer) {
	t.Helper()
	primary = servers.NewRedis(t)
	host, port, err := net.SplitHostPort(primary.Addr())
	must(t, err)
	return primary, servers.NewRedis(t, "replicaof "+host+" "+port)
}

// TestSyncReplicasOnly: a server that no replica follows is refused, and one that has some is waited for.
func TestSyncReplicasOnly(t *testing.T) {
	t.Parallel()
	only := redis.WithSyncReplicasOnly()
	if _, err := redis.Open(t.Context(), servers.NewRedis(t).URL(), only); err == nil ||
		!strings.Contains(err.Error(), "has 0 replicas, and writes are to wait for 1") {
		t.Errorf("a server without replicas: %v", err)
	}
	if _, err := redis.Open(t.Context(), "redis://127.0.0.1:1", only, redis.WithAOFAcks(0, time.Second)); err == nil ||
		!strings.Contains(err.Error(), "one replica at least") {
		t.Errorf("acknowledgements of the server alone: %v", err)
	}
	primary, replica := replicated(t)
	var s *redis.Store
	await.Success(t, "the replica follows", func() (err error) {
		s, err = redis.Open(t.Context(), primary.URL(), only)
		return err
	})
	defer func() { must(t, s.Close()) }()
	await.Success(t, "the replica has it", func() error {
		_, err := s.Reserve(t.Context(), booking("key"))
		return err
	})
	must(t, replica.Pause())
	_, err := s.Reserve(t.Context(), booking("another"))
	wantUnavailable(t, err, "a reservation that no replica has")
	must(t, replica.Resume())
}

// TestReplicaHangs: with WithReplicas no call of an owner succeeds while the replica does not have its writes, however
// often it is made; all of them succeed when the replica runs again.
func TestReplicaHangs(t *testing.T) {
	t.Parallel()
	primary, replica := replicated(t)
	s, around := open(t, primary.URL(), redis.WithReplicas(1, 100*time.Millisecond)), open(t, primary.URL())
	var first store.Claim
	await.Success(t, "the replica follows", func() error {
		v, err := s.Reserve(t.Context(), booking("first"))
		first = store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
		return err
	})
	await.Success(t, "the replica follows", func() error {
		_, err := s.Complete(t.Context(), first, paid("done"))
		return err
	})
	claims := make([]store.Claim, len(operations))
	for i, op := range operations {
		claims[i] = op.prepare(t, around, op.name)
	}

	must(t, replica.Pause())
	r := booking("hangs")
	for range 2 {
		_, err := s.Reserve(t.Context(), r)
		wantUnavailable(t, err, "S9: a reservation that no replica has")
		for i, op := range operations {
			wantUnavailable(t, op.call(t.Context(), s, claims[i]), "S6: "+op.name+" that no replica has")
		}
	}
	if v, err := s.Reserve(t.Context(), booking("first")); err != nil || v.Decision != store.DecisionReplay {
		t.Errorf("A6: a replay got %s (%v)", v.Decision, err)
	}
	must(t, replica.Resume())
	await.Success(t, "the replica is back", func() error {
		_, err := s.Reserve(t.Context(), r)
		return err
	})
	for i, op := range operations {
		await.Success(t, "S6: "+op.name+" succeeds when the replica is back", func() error {
			return op.call(t.Context(), s, claims[i])
		})
		if rec := look(t, s, op.name); !op.done(rec) {
			t.Errorf("%s left %+v", op.name, rec)
		}
	}
}

// TestReplicaHangsForOthers: while calls of others wait for a replica that hangs, what was written can be looked up and
// waited for, and what has to be looked up before it is written is written.
func TestReplicaHangsForOthers(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it waits ten seconds for a replica; TestReplicaHangs has a caller alone")
	primary, replica := replicated(t)
	// Longer than what was read counts, where nothing waits for replicas.
	const timeout = 1100 * time.Millisecond
	s, around := open(t, primary.URL(), redis.WithReplicas(1, timeout)), open(t, primary.URL())
	var claim store.Claim
	await.Success(t, "the replica follows", func() error {
		v, err := s.Reserve(t.Context(), booking("checkpoint"))
		claim = store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}
		return err
	})
	awaited := booked(t, around, "awaited")
	_, err := around.Complete(t.Context(), booked(t, around, "done"), paid("done"))
	must(t, err)
	must(t, replica.Pause())
	over, others, writes := make(chan struct{}), sync.WaitGroup{}, atomic.Int64{}
	for i := range 4 {
		others.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
					_, err := s.Reserve(t.Context(), booking(fmt.Sprint("other", i, n)))
					wantUnavailable(t, err, "S9: a reservation that no replica has")
					writes.Add(1)
				}
			}
		})
	}
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(t.Context(), awaited.ID, awaited.Attempt) }()
	for range 3 {
		await.That(t, "A6: a replay is answered while all writes wait", func() bool {
			before := writes.Load()
			if v, err := s.Reserve(t.Context(), booking("done")); err != nil || v.Decision != store.DecisionReplay {
				t.Errorf("A6: a replay got %s (%v)", v.Decision, err)
			}
			return writes.Load() == before
		})
	}
	err = s.Checkpoint(t.Context(), claim, store.Checkpoint{Point: "charged"})
	wantUnavailable(t, err, "S6: a checkpoint that no replica has")
	if rec := look(t, s, "checkpoint"); rec.Point != "charged" {
		t.Errorf("the checkpoint beside other writes left %+v", rec)
	}
	select {
	case err := <-waited:
		t.Errorf("the wait ended with %v before the attempt", err)
	default:
	}
	wantUnavailable(t, s.Release(t.Context(), awaited, "nothing was done"), "S6: a release that no replica has")
	must(t, await.Value(t, "the end of the wait", waited))
	close(over)
	others.Wait()
	must(t, replica.Resume())
}
