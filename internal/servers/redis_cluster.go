package servers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// redisSlots is the number of slots of a cluster.
const redisSlots = 16384

// RedisCluster is a running Redis Cluster of six nodes. At first, nodes 0 to 2 are primaries with
// a third of the slots each, and node i+3 is the replica of node i. It is safe for concurrent use.
type RedisCluster struct {
	redisGroup
	// ids are the cluster's names of the nodes.
	ids []string
	// proxies are the proxies of the nodes for clients and replicas; empty without proxies.
	proxies []*RedisProxy
}

// StartRedisCluster starts a private cluster without data, with settings for all nodes like
// those of StartRedis. It takes a bit more than two seconds, in which Redis refuses writes after
// its start. A lost primary is replaced after some three seconds, unless cluster-node-timeout is
// set. The context only limits the start. The caller closes the cluster.
func StartRedisCluster(ctx context.Context, settings ...string) (*RedisCluster, error) {
	return startRedisCluster(ctx, false, settings)
}

// StartProxiedRedisCluster starts a cluster like StartRedisCluster whose nodes announce
// the addresses of proxies to clients and to each other, so that connections can be cut
// and slowed, and replies lost. The nodes check without proxies which of them are alive.
func StartProxiedRedisCluster(ctx context.Context, settings ...string) (*RedisCluster, error) {
	return startRedisCluster(ctx, true, settings)
}

func startRedisCluster(ctx context.Context, proxied bool, settings []string) (*RedisCluster, error) {
	return retryPorts(func() (*RedisCluster, error) {
		c, err := newRedisCluster(proxied, settings)
		if err == nil {
			err = startAll(ctx, c.nodes)
		}
		if err == nil {
			err = c.AwaitReady(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	})
}

// newRedisCluster returns a cluster that is not running yet. The cluster's state
// is written to files in advance: nodes that have to find each other need seconds.
func newRedisCluster(proxied bool, settings []string) (*RedisCluster, error) {
	const primaries, nodes = 3, 6
	c := &RedisCluster{}
	for range nodes {
		if err := c.addNode(proxied, settings); err != nil {
			return c, err
		}
	}
	for i, s := range c.nodes {
		if err := os.WriteFile(filepath.Join(s.dir, "nodes.conf"), []byte(c.nodesFile(i, primaries)), 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

// addNode adds a node that is not running yet, with its ports.
func (c *RedisCluster) addNode(proxied bool, settings []string) error {
	s, err := newRedis("Redis Cluster", nil)
	if err != nil {
		return err
	}
	c.nodes, c.ids = append(c.nodes, s), append(c.ids, newRedisID())
	if s.bus, err = freePort(); err != nil {
		return err
	}
	if err := s.choosePorts(); err != nil {
		return err
	}
	s.settings = []string{"cluster-enabled yes", "cluster-node-timeout 2000", "cluster-port " + strconv.Itoa(s.bus)}
	if proxied {
		p, err := StartRedisProxy(s.url)
		if err != nil {
			return err
		}
		c.proxies = append(c.proxies, p)
		s.announced = p.listener.Addr().(*net.TCPAddr).Port
		s.settings = append(s.settings, "cluster-announce-port "+strconv.Itoa(s.announced))
	}
	s.settings = append(s.settings, settings...)
	return s.configure()
}

// newRedisID returns a new name of a node or sentinel.
func newRedisID() string {
	id := make([]byte, 20)
	_, _ = rand.Read(id) // it never fails
	return hex.EncodeToString(id)
}

// nodesFile returns a node's state of the cluster, in the form in which Redis stores it.
func (c *RedisCluster) nodesFile(self, primaries int) string {
	var text strings.Builder
	for i, s := range c.nodes {
		flags, follows, epoch, slots := "master", "-", i+1, ""
		if i < primaries {
			slots = fmt.Sprintf(" %d-%d", i*redisSlots/primaries, (i+1)*redisSlots/primaries-1)
		} else {
			flags, follows, epoch = "slave", c.ids[i-primaries], i-primaries+1
		}
		if i == self {
			flags = "myself," + flags
		}
		fmt.Fprintf(&text, "%s 127.0.0.1:%d@%d %s %s 0 0 %d connected%s\n",
			c.ids[i], s.knownPort(), s.bus, flags, follows, epoch, slots)
	}
	fmt.Fprintf(&text, "vars currentEpoch %d lastVoteEpoch 0\n", primaries)
	return text.String()
}

// URL returns a URL with all nodes, as redis+cluster://host:port,host:port.
func (c *RedisCluster) URL() string { return listURL("redis+cluster", c.nodes, "") }

// Proxies returns the proxies for clients, in the order of the nodes, if the cluster was started with them.
func (c *RedisCluster) Proxies() []*RedisProxy { return c.proxies }

// Close ends all nodes permanently and removes their data.
func (c *RedisCluster) Close() error {
	err := c.redisGroup.Close()
	for _, p := range c.proxies {
		err = errors.Join(err, p.Close())
	}
	return err
}

// AwaitReady waits until all running nodes report that the cluster
// serves all slots, and all running replicas follow their primaries.
func (c *RedisCluster) AwaitReady(ctx context.Context) error {
	err := await(ctx, "the cluster serves all slots", func() (bool, error) {
		for _, s := range c.nodes {
			if !s.Runs() {
				continue
			}
			reply, err := s.Do(ctx, "CLUSTER", "INFO")
			if err != nil || redisFields(reply)["cluster_state"] != "ok" {
				return false, nil
			}
		}
		return true, nil
	})
	return errors.Join(err, c.AwaitReplicas(ctx))
}

// Primary returns the node that serves a slot, according to all running primaries. They must agree.
func (c *RedisCluster) Primary(ctx context.Context, slot int) (*RedisServer, error) {
	primaries, err := c.primaries(ctx)
	if err != nil {
		return nil, err
	}
	var agreed *RedisServer
	for _, s := range primaries {
		found, err := c.primaryBy(ctx, s, slot)
		if err != nil {
			return nil, err
		}
		if agreed != nil && found != agreed {
			return nil, fmt.Errorf("servers: the nodes do not agree on the primary of slot %d", slot)
		}
		agreed = found
	}
	return agreed, nil
}

// primaries returns the running nodes that report that they are primaries.
func (c *RedisCluster) primaries(ctx context.Context) (found []*RedisServer, err error) {
	for _, s := range c.nodes {
		if !s.Runs() {
			continue
		}
		info, err := s.Info(ctx)
		if err != nil {
			return nil, err
		}
		if info["role"] == "master" {
			found = append(found, s)
		}
	}
	return found, nil
}

// primaryBy returns the node that serves a slot, according to one node.
func (c *RedisCluster) primaryBy(ctx context.Context, asked *RedisServer, slot int) (*RedisServer, error) {
	reply, err := asked.Do(ctx, "CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	ranges, _ := reply.([]any)
	for _, each := range ranges {
		about, _ := each.([]any)
		if len(about) < 3 || int64(slot) < about[0].(int64) || int64(slot) > about[1].(int64) {
			continue
		}
		if node, _ := about[2].([]any); len(node) > 2 {
			return c.nodeOf(fmt.Sprint(node[2]))
		}
	}
	return nil, fmt.Errorf("servers: slot %d has no primary", slot)
}

// nodeOf returns the node with a name.
func (c *RedisCluster) nodeOf(id string) (*RedisServer, error) {
	for i, known := range c.ids {
		if known == id {
			return c.nodes[i], nil
		}
	}
	return nil, fmt.Errorf("servers: the cluster has no node %s", id)
}

// AwaitPrimary waits until all primaries agree on a running primary of the slot, and all slots
// are served, and returns that primary. After the loss of a primary, this is its former replica.
func (c *RedisCluster) AwaitPrimary(ctx context.Context, slot int) (primary *RedisServer, err error) {
	err = await(ctx, fmt.Sprintf("slot %d has a primary", slot), func() (bool, error) {
		primary, err = c.Primary(ctx, slot)
		return err == nil && primary.Runs(), nil
	})
	return primary, errors.Join(err, c.AwaitReady(ctx))
}

// idOf returns the name of a node.
func (c *RedisCluster) idOf(s *RedisServer) string {
	for i, each := range c.nodes {
		if each == s {
			return c.ids[i]
		}
	}
	return ""
}

// BeginMove begins to move a slot to another primary. The old primary then answers for the keys that it still has,
// and redirects clients to the new primary for the others (ASK). A command with keys on both is refused (TRYAGAIN).
func (c *RedisCluster) BeginMove(ctx context.Context, slot int, to *RedisServer) error {
	from, err := c.Primary(ctx, slot)
	if err != nil || from == to {
		return err
	}
	if _, err := to.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", c.idOf(from)); err != nil {
		return err
	}
	_, err = from.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", c.idOf(to))
	return err
}

// MoveKeys moves at most count keys of a slot that is being moved, and returns the number of keys moved.
func (c *RedisCluster) MoveKeys(ctx context.Context, slot int, to *RedisServer, count int) (int, error) {
	from, err := c.Primary(ctx, slot)
	if err != nil || from == to {
		return 0, err
	}
	reply, err := from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), strconv.Itoa(count))
	if err != nil {
		return 0, err
	}
	keys, _ := reply.([]any)
	if len(keys) == 0 {
		return 0, nil
	}
	command := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), "", "0", "5000", "KEYS"}
	for _, key := range keys {
		command = append(command, fmt.Sprint(key))
	}
	_, err = from.Do(ctx, command...)
	return len(keys), err
}

// EndMove moves the remaining keys of a slot, and makes the new primary
// serve it. The replicas of other primaries are updated a moment later.
func (c *RedisCluster) EndMove(ctx context.Context, slot int, to *RedisServer) error {
	from, err := c.Primary(ctx, slot)
	if err != nil || from == to {
		return err
	}
	for moved := 1; moved > 0; {
		if moved, err = c.MoveKeys(ctx, slot, to, 100); err != nil {
			return err
		}
	}
	primaries, err := c.primaries(ctx)
	if err != nil {
		return err
	}
	for _, s := range append([]*RedisServer{to}, primaries...) { // the new primary first: a crash keeps it served
		if _, err := s.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", c.idOf(to)); err != nil {
			return err
		}
	}
	return nil
}

// MoveSlots moves slots with their keys to another primary, one after the other, while clients use them.
func (c *RedisCluster) MoveSlots(ctx context.Context, to *RedisServer, slots ...int) error {
	for _, slot := range slots {
		if err := errors.Join(c.BeginMove(ctx, slot, to), c.EndMove(ctx, slot, to)); err != nil {
			return err
		}
	}
	return nil
}
