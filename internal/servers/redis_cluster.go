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

// redisSlots is how many slots the keys of a cluster are spread over.
const redisSlots = 16384

// RedisCluster is a running Redis Cluster of six nodes: three primaries at first, node 0 to 2 with a third of the slots
// each, and node i+3 as the replica of node i. All of its methods can be called at the same time.
type RedisCluster struct {
	redisGroup
	// ids are the nodes' names for each other.
	ids []string
	// proxies are empty, or what clients and replicas go through, for each node one.
	proxies []*RedisProxy
}

// StartRedisCluster starts a private cluster without data, with settings of all nodes like those of StartRedis. It
// takes a bit more than two seconds, for which Redis refuses to write after its start. A primary that is gone is
// replaced after some three seconds, unless cluster-node-timeout is set. The context limits the start only. Close it
// when done.
func StartRedisCluster(ctx context.Context, settings ...string) (*RedisCluster, error) {
	return startRedisCluster(ctx, false, settings)
}

// StartProxiedRedisCluster starts a cluster like StartRedisCluster whose nodes tell clients and each other that they
// are where a proxy is, so that links can be cut and slowed, and replies lost. The nodes themselves reach each other
// without proxies to find out which of them are alive.
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

// newRedisCluster is a cluster that does not run yet. Its nodes know each other before they meet, because what they
// know is in a file: to make them meet takes seconds.
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

// addNode makes a node that does not run yet, with its ports.
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

// newRedisID is a name as Redis makes them for nodes and sentinels.
func newRedisID() string {
	id := make([]byte, 20)
	_, _ = rand.Read(id) // it never fails
	return hex.EncodeToString(id)
}

// nodesFile is what a node knows of the cluster, in the form that it keeps it in.
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

// URL names all nodes, as redis+cluster://host:port,host:port.
func (c *RedisCluster) URL() string { return listURL("redis+cluster", c.nodes, "") }

// Proxies are what clients go through, in the order of the nodes, if the cluster was started with them.
func (c *RedisCluster) Proxies() []*RedisProxy { return c.proxies }

// Close ends all nodes for good and removes their data.
func (c *RedisCluster) Close() error {
	err := c.redisGroup.Close()
	for _, p := range c.proxies {
		err = errors.Join(err, p.Close())
	}
	return err
}

// AwaitReady waits until all nodes that run say that the cluster serves all slots, and all replicas that run follow
// their primaries.
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

// Primary is the node that serves a slot, by what the primaries that run say: all of them must agree.
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

// primaries are the nodes that run and say that they are primaries.
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

// primaryBy is the node that serves a slot by what one of them says.
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

// nodeOf is the node with this name.
func (c *RedisCluster) nodeOf(id string) (*RedisServer, error) {
	for i, known := range c.ids {
		if known == id {
			return c.nodes[i], nil
		}
	}
	return nil, fmt.Errorf("servers: the cluster has no node %s", id)
}

// AwaitPrimary waits until all primaries agree on one of the slot that runs, and all slots are served again, and
// returns it: after the end of a primary, its replica.
func (c *RedisCluster) AwaitPrimary(ctx context.Context, slot int) (primary *RedisServer, err error) {
	err = await(ctx, fmt.Sprintf("slot %d has a primary", slot), func() (bool, error) {
		primary, err = c.Primary(ctx, slot)
		return err == nil && primary.Runs(), nil
	})
	return primary, errors.Join(err, c.AwaitReady(ctx))
}

// idOf is the name of a node.
func (c *RedisCluster) idOf(s *RedisServer) string {
	for i, each := range c.nodes {
		if each == s {
			return c.ids[i]
		}
	}
	return ""
}

// BeginMove makes a slot begin to move to another primary. From then on the old primary answers for keys that it has
// and sends clients to the new one for the others (ASK); a command whose keys are on both is refused (TRYAGAIN).
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

// MoveKeys moves at most count keys of a slot that moves, and returns how many it has moved.
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

// EndMove moves what is left of a slot that moves, and makes the new primary serve it. The replicas of others learn
// that a moment later.
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
	for _, s := range append([]*RedisServer{to}, primaries...) { // who takes it first: a crash leaves the slot served
		if _, err := s.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", c.idOf(to)); err != nil {
			return err
		}
	}
	return nil
}

// MoveSlots moves slots to another primary with their keys, one after the other, while clients use them.
func (c *RedisCluster) MoveSlots(ctx context.Context, to *RedisServer, slots ...int) error {
	for _, slot := range slots {
		if err := errors.Join(c.BeginMove(ctx, slot, to), c.EndMove(ctx, slot, to)); err != nil {
			return err
		}
	}
	return nil
}
