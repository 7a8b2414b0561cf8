package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

// shortSelection is what make test runs of the suite on other kinds of servers than a single one.
var shortSelection = []string{"Fencing", "Repeats", "Content", "Waiter", "Sweeper", "Lister"}

func TestStoreOnCluster(t *testing.T) {
	t.Parallel()
	c := servers.SharedRedisCluster(t)
	storetest.Run(t, storetest.Harness{
		Open:   func(t testing.TB) storetest.Instance { return instance(t, c.URL(), c.Name(t)) },
		Groups: servers.UnlessAllStores(shortSelection...),
	})
}

// TestClusterPrimaryKilled kills a primary while clients pay, and starts it again when its replica has taken over: no
// outcome is invented, nothing is done twice but for what Redis forgot, and all are served again.
func TestClusterPrimaryKilled(t *testing.T) {
	t.Parallel()
	cluster := servers.NewRedisCluster(t)
	c := newCrowd(t, open(t, cluster.URL()))
	c.start(8)
	c.more(t, 100)
	must(t, cluster.AwaitReplicas(t.Context()))
	must(t, cluster.Nodes()[0].Kill())
	killed := killedAt(time.Now())
	next, err := cluster.AwaitPrimary(t.Context(), 0)
	must(t, err)
	if next != cluster.Nodes()[3] {
		t.Fatal("the primary was not replaced by its replica")
	}
	c.more(t, 100)
	must(t, cluster.Nodes()[0].Restart())
	must(t, cluster.AwaitReady(t.Context()))
	c.more(t, 100)
	c.check(t, killed)
}

// slotOf is the slot of a key of the store, by its name.
func slotOf(t testing.TB, cluster *servers.RedisCluster, key string) int {
	t.Helper()
	reply, err := cluster.Nodes()[0].Do(t.Context(), "CLUSTER", "KEYSLOT", key)
	must(t, err)
	return int(reply.(int64))
}

// keysIn are the names of all keys of a cluster.
func keysIn(t testing.TB, cluster *servers.RedisCluster) (keys []string) {
	t.Helper()
	for _, node := range cluster.Nodes()[:3] {
		reply, err := node.Do(t.Context(), "KEYS", "*")
		must(t, err)
		for _, key := range reply.([]any) {
			keys = append(keys, key.(string))
		}
	}
	return keys
}

// TestClusterMovesSlots moves slots from one primary to another and on while clients pay, and ask again for payments that
// are in these slots: nothing is lost, and nothing is done twice.
func TestClusterMovesSlots(t *testing.T) {
	t.Parallel()
	cluster := servers.NewRedisCluster(t)
	c := newCrowd(t, open(t, cluster.URL()))
	c.start(8)
	c.more(t, 100)
	var slots []int
	var asking sync.WaitGroup
	done := make(chan struct{})
	for key, answer := range c.answered(6) {
		slots = append(slots, slotOf(t, cluster, recordKey(t, cluster, key)))
		asking.Go(func() { askAgain(t, c, key, answer, done) })
	}
	for i := range 2 {
		for _, slot := range slots {
			must(t, cluster.MoveSlots(t.Context(), cluster.Nodes()[(slot+i)%3], slot))
		}
	}
	close(done)
	asking.Wait()
	c.more(t, 100)
	c.check(t)
}

// askAgain asks for a payment that was answered until it is told to stop: the answer is the same each time, if there is
// one.
func askAgain(t *testing.T, c *crowd, key, answer string, done <-chan struct{}) {
	t.Helper()
	for served := 0; ; time.Sleep(pause) {
		status, code, body := c.post(key)
		switch {
		case status == http.StatusCreated && body == answer:
			served++
		case code != "store-unavailable":
			t.Errorf("I3: %s was answered with %q, and then with %d %q", key, answer, status, body)
		}
		select {
		case <-done:
			if served == 0 {
				t.Errorf("%s was never served while slots moved", key)
			}
			return
		default:
		}
	}
}

// TestClusterSlotHalfMoved has calls meet a slot of which a part of the keys is on either node: they fail as those that
// the store cannot do, or do their work, and the same call again succeeds when the slot has moved.
func TestClusterSlotHalfMoved(t *testing.T) {
	t.Parallel()
	cluster := servers.NewRedisCluster(t)
	s := open(t, cluster.URL())
	for _, op := range operations {
		for keysMoved := range 2 {
			key := fmt.Sprint(op.name, keysMoved)
			claim := op.prepare(t, s, key)
			slot := slotOf(t, cluster, recordKey(t, cluster, key))
			to := otherPrimary(t, cluster, slot)
			must(t, cluster.BeginMove(t.Context(), slot, to))
			_, err := cluster.MoveKeys(t.Context(), slot, to, keysMoved)
			must(t, err)
			if err := tryFor(t, 200*time.Millisecond, func(ctx context.Context) error { return op.call(ctx, s, claim) }); err != nil {
				wantUnavailable(t, err, op.name+" while the slot moves")
			}
			if _, err := s.Get(t.Context(), claim.ID); err != nil {
				t.Errorf("get while the slot moves: %v", err)
			}
			must(t, cluster.EndMove(t.Context(), slot, to))
			if err := op.call(t.Context(), s, claim); err != nil {
				t.Errorf("S6: %s after the slot has moved: %v", op.name, err)
			}
			if rec := look(t, s, key); !op.done(rec) {
				t.Errorf("%s left %+v", op.name, rec)
			}
		}
	}
}

// tryFor makes a call with a context of its own.
func tryFor(t testing.TB, limit time.Duration, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return call(ctx)
}

// recordKey finds the key in which the store keeps a record.
func recordKey(t testing.TB, cluster *servers.RedisCluster, key string) string {
	t.Helper()
	for _, each := range keysIn(t, cluster) {
		if strings.HasSuffix(each, key) {
			return each
		}
	}
	t.Fatalf("no key ends in %q", key)
	return ""
}

// otherPrimary is a primary that does not serve a slot.
func otherPrimary(t testing.TB, cluster *servers.RedisCluster, slot int) *servers.RedisServer {
	t.Helper()
	primary, err := cluster.Primary(t.Context(), slot)
	must(t, err)
	if primary == cluster.Nodes()[0] {
		return cluster.Nodes()[1]
	}
	return cluster.Nodes()[0]
}

// TestClusterLosesReplies loses the reply to each command of each call in a cluster, as TestLostReplies does.
func TestClusterLosesReplies(t *testing.T) {
	t.Parallel()
	cluster := servers.NewProxiedRedisCluster(t, "cluster-node-timeout 30000")
	s := open(t, cluster.URL(), redis.WithPrefix("lossy"))
	for _, op := range operations {
		claim := op.prepare(t, s, op.name)
		for _, proxy := range cluster.Proxies() {
			proxy.CutReply(func(command string) bool { return strings.Contains(command, "lossy") })
		}
		err := op.call(t.Context(), s, claim)
		for _, proxy := range cluster.Proxies() {
			proxy.Disarm()
		}
		if err != nil {
			wantUnavailable(t, err, op.name)
		}
		eventually(t, op.name+" is done", func() error { return op.call(t.Context(), s, claim) })
		if rec := look(t, s, op.name); !op.done(rec) {
			t.Errorf("S6: %s left %+v", op.name, rec)
		}
	}
}

// TestClusterLinkCut cuts one primary off from clients and replicas, which the other nodes do not see: calls on its
// slots fail, calls on others are served, and all are when it is back.
func TestClusterLinkCut(t *testing.T) {
	t.Parallel()
	cluster := servers.NewProxiedRedisCluster(t, "cluster-node-timeout 30000")
	s := open(t, cluster.URL())
	cut := cluster.Proxies()[0]
	cut.Refuse(true)
	cut.DropAll()
	served, failed := 0, 0
	for i := range 15 {
		err := tryFor(t, 300*time.Millisecond, func(ctx context.Context) error {
			_, err := s.Reserve(ctx, booking(fmt.Sprint("key", i)))
			return err
		})
		if err == nil {
			served++
			continue
		}
		wantUnavailable(t, err, "a primary that cannot be reached")
		failed++
	}
	if served == 0 || failed == 0 {
		t.Errorf("%d calls were served and %d failed, want both", served, failed)
	}
	cut.Refuse(false)
	for i := range 15 {
		eventually(t, "all are served", func() error {
			v, err := s.Reserve(t.Context(), booking(fmt.Sprint("key", i)))
			if err == nil && v.Decision != store.DecisionExecute && v.Decision != store.DecisionInProgress {
				return errors.New(v.Decision.String())
			}
			return err
		})
	}
}
