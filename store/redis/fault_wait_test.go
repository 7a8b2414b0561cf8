package redis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// waiting waits for the end of an attempt. Like the guard, it waits again if the store cannot determine it.
func waiting(ctx context.Context, s store.Waiter, c store.Claim) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			err := s.Wait(ctx, c.ID, c.Attempt)
			if !errors.Is(err, store.ErrUnavailable) {
				done <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return done
}

// wantStill: what is waited for has not come.
func wantStill(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("the wait ended with %v before the attempt", err)
	case <-time.After(100 * time.Millisecond):
	}
}

// wantWoken: a wait ends after the attempt.
func wantWoken(t *testing.T, done <-chan error) {
	t.Helper()
	must(t, await.Value(t, "the end of a wait whose attempt has ended", done))
}

// TestWaitOutlivesConnections: a wait whose connections are cut, whose server is killed, or whose server publishes while
// nothing is heard, ends with the attempt.
func TestWaitOutlivesConnections(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	proxy := servers.NewRedisProxy(t, server.URL())
	s, around := open(t, proxy.URL()), open(t, server.URL())
	faults := map[string]func(){
		"cut": proxy.DropAll,
		"killed": func() {
			must(t, server.Kill())
			must(t, server.Restart())
		},
		"deaf": func() {
			proxy.Refuse(true)
			proxy.DropAll()
			time.AfterFunc(200*time.Millisecond, func() { proxy.Refuse(false) })
		},
	}
	for name, fault := range faults {
		claim := booked(t, around, name)
		done := waiting(t.Context(), s, claim)
		wantStill(t, done)
		fault()
		await.Success(t, "the attempt is over", func() error {
			_, err := around.Complete(t.Context(), claim, paid("done"))
			return err
		})
		wantWoken(t, done)
	}
}

// TestClusterWaitFollowsTheSlot: a wait in a slot that moves ends with the attempt, and does not end before.
func TestClusterWaitFollowsTheSlot(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	s := open(t, cluster.URL())
	claim := booked(t, s, "awaited")
	done := waiting(t.Context(), s, claim)
	wantStill(t, done)
	slot := slotOf(t, cluster, recordKey(t, cluster, "onceward", "awaited"))
	must(t, cluster.MoveSlots(t.Context(), otherPrimary(t, cluster, slot), slot))
	wantStill(t, done)
	_, err := s.Complete(t.Context(), claim, paid("done"))
	must(t, err)
	wantWoken(t, done)
}

// TestWaitLeavesNoSubscription: the server keeps no channel of a wait that is over, or one tenant could fill its memory.
func TestWaitLeavesNoSubscription(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	s := open(t, server.URL(), redis.WithPrefix(prefix))
	channels := func() int {
		reply, err := server.Do(t.Context(), "PUBSUB", "SHARDCHANNELS", prefix+"*")
		must(t, err)
		found, _ := reply.([]any)
		return len(found)
	}
	v, err := s.Reserve(t.Context(), booking("waited for"))
	must(t, err)
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(t.Context(), v.Record.ID, v.Record.Attempt) }()
	await.Success(t, "the wait has a subscription", func() error {
		if channels() == 0 {
			return errors.New("there is no channel")
		}
		return nil
	})
	_, err = s.Complete(t.Context(), store.Claim{ID: v.Record.ID, Attempt: v.Record.Attempt}, paid("done"))
	must(t, err)
	must(t, await.Value(t, "the end of the wait", waited))
	await.Success(t, "the subscription ends", func() error {
		if n := channels(); n > 0 {
			return fmt.Errorf("there are %d channels", n)
		}
		return nil
	})
}
