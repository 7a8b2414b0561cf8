package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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
	"github.com/onceward/onceward/store/storetest"
)

func TestStoreOnCluster(t *testing.T) {
	t.Parallel()
	c := servers.SharedRedisCluster(t)
	storetest.Run(t, storetest.Harness{
		Open:   func(t testing.TB) storetest.Instance { return instance(t, c.URL(), c.Name(t)) },
		Groups: servers.UnlessAllStores("Repeats", "Waiter", "Lister"),
	})
}

// TestClusterPrimaryKilled kills a primary while clients pay, and starts it again when its replica has taken over: no
// outcome is invented, nothing is done twice but for what Redis forgot, and all are served again.
func TestClusterPrimaryKilled(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	c := newCrowd(t, open(t, cluster.URL()))
	c.start(8)
	c.more(t, 100)
	killed := span{from: time.Now()}
	must(t, cluster.AwaitReplicas(t.Context()))
	must(t, cluster.Nodes()[0].Kill())
	killed.to = time.Now()
	takeOver(t, cluster, cluster.Nodes()[3])
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

// ways returns options of stores by the way that their writes take: those that wait for replicas take another one.
func ways(longest time.Duration) map[string][]redis.Option {
	return map[string][]redis.Option{"plain": nil, "acknowledged": {redis.WithReplicas(1, longest)}}
}

// acknowledged is about the longest that a write may wait for replicas.
const acknowledged = 9 * time.Second

// TestClusterMovesSlots moves slots from one primary to another and on while clients pay, and ask again for payments that
// are in these slots: nothing is lost, and nothing is done twice.
func TestClusterMovesSlots(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	var slots []int
	var crowds []*crowd
	var asking sync.WaitGroup
	done, unserved := make(chan struct{}), new(atomic.Int64)
	for prefix, options := range ways(acknowledged) {
		c := newCrowd(t, open(t, cluster.URL(), append(options, redis.WithPrefix(prefix))...))
		c.start(4)
		c.more(t, 50)
		for key, answer := range c.answered(3) {
			slots = append(slots, slotOf(t, cluster, recordKey(t, cluster, prefix, key)))
			unserved.Add(1)
			asking.Go(func() { askAgain(t, c, key, answer, unserved, done) })
		}
		crowds = append(crowds, c)
	}
	moves := 0
	await.That(t, "all are served while slots move", func() bool {
		for _, slot := range slots {
			must(t, cluster.MoveSlots(t.Context(), cluster.Nodes()[(slot+moves)%3], slot))
		}
		moves++
		return moves >= 2 && unserved.Load() == 0
	})
	close(done)
	asking.Wait()
	for _, c := range crowds {
		c.more(t, 50)
		c.check(t)
	}
}

// askAgain asks for a payment that was answered until the test is done: the answer is the same each time, if there is
// one. It counts itself as served when it has one.
func askAgain(t *testing.T, c *crowd, key, answer string, unserved *atomic.Int64, done <-chan struct{}) {
	t.Helper()
	for served := 0; ; time.Sleep(pause) {
		status, code, body := c.post(key)
		switch {
		case status == http.StatusCreated && body == answer:
			if served++; served == 1 {
				unserved.Add(-1)
			}
		case code != "store-unavailable":
			t.Errorf("I3: %s was answered with %q, and then with %d %q", key, answer, status, body)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestClusterSlotHalfMoved has calls meet a slot of which a part of the keys is on either node: they fail as those that
// the store cannot do, or do their work, and the same call again succeeds when the slot has moved.
func TestClusterSlotHalfMoved(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	for prefix, options := range ways(acknowledged) {
		t.Run(prefix, func(t *testing.T) {
			s := open(t, cluster.URL(), append(options, redis.WithPrefix(prefix))...)
			made := int64(0)
			for _, op := range operations {
				for keysMoved := range 4 {
					key := fmt.Sprint(prefix, op.name, keysMoved) // prefixes share the slots of equal keys
					claim := op.prepare(t, s, key)
					slot := slotOf(t, cluster, recordKey(t, cluster, prefix, key))
					to := otherPrimary(t, cluster, slot)
					must(t, cluster.BeginMove(t.Context(), slot, to))
					moved, err := cluster.MoveKeys(t.Context(), slot, to, keysMoved)
					must(t, err)
					// With all that the slot has elsewhere, what needs no other key is done there.
					if moved == 3 && (op.name == "extend" || op.name == "complete" || op.name == "release") {
						if err := op.call(t.Context(), s, claim); err != nil {
							t.Errorf("%s where all its keys have moved: %v", op.name, err)
						}
					} else if err := tryFor(t, 300*time.Millisecond, func(ctx context.Context) error {
						return op.call(ctx, s, claim)
					}); err != nil {
						wantUnavailable(t, err, op.name+" while the slot moves")
					}
					if _, err := s.Get(t.Context(), claim.ID); err != nil {
						t.Errorf("get while the slot moves: %v", err)
					}
					made++
					if n := counted(t, s); n != made {
						t.Errorf("%d records are counted while the slot moves, want %d", n, made)
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
		})
	}
	// These are 48 calls of 300 ms at most; a pause that does not grow makes it about 2,000.
	whole, byHash := rejected(t, cluster, "eval"), rejected(t, cluster, "evalsha")
	if byHash == 0 || byHash > 950 || whole > 20 {
		t.Errorf("scripts met a moving slot %d times by their hash, and %d times as a whole", byHash, whole)
	}
}

// counted is how many records there are.
func counted(t testing.TB, s store.Lister) (sum int64) {
	t.Helper()
	stats, err := s.Stats(t.Context())
	must(t, err)
	for _, n := range stats.Records {
		sum += n
	}
	return sum
}

// rejected is how often the nodes of a cluster had to reject a command before it began.
func rejected(t testing.TB, cluster *servers.RedisCluster, command string) (times int) {
	t.Helper()
	for _, node := range cluster.Nodes() {
		reply, err := node.Do(t.Context(), "INFO", "commandstats")
		must(t, err)
		_, stats, _ := strings.Cut(fmt.Sprint(reply), "cmdstat_"+command+":")
		_, stats, _ = strings.Cut(stats, "rejected_calls=")
		n := 0
		_, _ = fmt.Sscan(stats, &n)
		times += n
	}
	return times
}

// TestClusterSlotMovesToNewNode has a slot on its way to a node that serves none yet, which no client knows: a write that
// waits for replicas is done there, too.
func TestClusterSlotMovesToNewNode(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewRedisCluster(t, calm)
	bus, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	busPort := fmt.Sprint(bus.Addr().(*net.TCPAddr).Port)
	must(t, bus.Close())
	fresh := servers.NewRedis(t, "cluster-enabled yes", "cluster-port "+busPort)
	host, port, err := net.SplitHostPort(fresh.Addr())
	must(t, err)
	do := func(server *servers.RedisServer, command ...string) any {
		t.Helper()
		reply, err := server.Do(t.Context(), command...)
		must(t, err)
		return reply
	}
	s := open(t, cluster.URL(), redis.WithReplicas(1, 2*time.Second))
	claim := booked(t, open(t, cluster.URL()), "key")
	record := recordKey(t, cluster, "onceward", "key")
	slot := slotOf(t, cluster, record)
	from, err := cluster.Primary(t.Context(), slot)
	must(t, err)
	do(from, "CLUSTER", "MEET", host, port, busPort)
	id, old := do(fresh, "CLUSTER", "MYID").(string), do(from, "CLUSTER", "MYID").(string)
	await.Success(t, "the nodes know each other", func() error {
		info, err := fresh.Do(t.Context(), "CLUSTER", "INFO")
		if err == nil && !strings.Contains(fmt.Sprint(info), "cluster_state:ok") {
			err = fmt.Errorf("%v", info)
		}
		_, unknown := from.Do(t.Context(), "CLUSTER", "COUNT-FAILURE-REPORTS", id)
		return errors.Join(err, unknown)
	})
	do(fresh, "CLUSTER", "SETSLOT", fmt.Sprint(slot), "IMPORTING", old)
	do(from, "CLUSTER", "SETSLOT", fmt.Sprint(slot), "MIGRATING", id)
	migrate := []string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}
	for _, key := range do(from, "CLUSTER", "GETKEYSINSLOT", fmt.Sprint(slot), "10").([]any) {
		migrate = append(migrate, key.(string))
	}
	do(from, migrate...)
	err = s.Extend(t.Context(), claim, 2*time.Hour)
	if err == nil || !strings.Contains(err.Error(), "acknowledged by 0 of 1") { // the new node has no replica
		t.Errorf("extend on a node that is new: %v", err)
	}
	if rec := look(t, s, "key"); rec.LeaseUntil.Sub(rec.CreatedAt) < 2*time.Hour {
		t.Errorf("extend left %+v", rec)
	}
}

// tryFor makes a call with a context of its own.
func tryFor(t testing.TB, limit time.Duration, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return call(ctx)
}

// recordKey finds the key in which a store keeps a record, by the prefix of the store.
func recordKey(t testing.TB, cluster *servers.RedisCluster, prefix, key string) string {
	t.Helper()
	hash := booking(key).ID.HashBytes()
	for _, each := range keysIn(t, cluster) {
		if strings.HasPrefix(each, prefix+":") && strings.HasSuffix(each, string(hash[:])) {
			return each
		}
	}
	t.Fatalf("no record of %q", key)
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
	nightly.Only(t, ownCluster)
	cluster := servers.NewProxiedRedisCluster(t, calm)
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
		await.Success(t, op.name+" is done", func() error { return op.call(t.Context(), s, claim) })
		if rec := look(t, s, op.name); !op.done(rec) {
			t.Errorf("S6: %s left %+v", op.name, rec)
		}
	}
}

// TestClusterLinkCut cuts one primary off from clients and replicas, which the other nodes do not see: calls on its
// slots fail, calls on others are served, and all are when it is back.
func TestClusterLinkCut(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewProxiedRedisCluster(t, calm)
	s := open(t, cluster.URL())
	cut := cluster.Proxies()[0]
	cut.Refuse(true)
	cut.DropAll()
	tried, served, failed := 0, 0, 0
	await.That(t, "some calls are served, and others fail", func() bool {
		err := tryFor(t, 300*time.Millisecond, func(ctx context.Context) error {
			_, err := s.Reserve(ctx, booking(fmt.Sprint("key", tried)))
			return err
		})
		tried++
		if err == nil {
			served++
		} else {
			wantUnavailable(t, err, "a primary that cannot be reached")
			failed++
		}
		return tried >= 15 && served > 0 && failed > 0
	})
	cut.Refuse(false)
	for i := range tried {
		await.Success(t, "all are served", func() error {
			v, err := s.Reserve(t.Context(), booking(fmt.Sprint("key", i)))
			if err == nil && v.Decision != store.DecisionExecute && v.Decision != store.DecisionInProgress {
				return errors.New(v.Decision.String())
			}
			return err
		})
	}
}
