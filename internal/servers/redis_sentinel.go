package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// redisMaster is the sentinels' name of the primary that they watch.
const redisMaster = "main"

// RedisSentinel is a running Redis with a replica, and three sentinels that can promote the replica. They
// wait a minute before they replace a lost primary: with less time, a busy machine makes them replace a
// running one. AwaitPrimary makes them replace a stopped primary at once. It is safe for concurrent use.
type RedisSentinel struct{ redisGroup }

// StartRedisSentinel starts a private primary, node 0, its replica, node 1, with settings like those of
// StartRedis, and three sentinels. The context only limits the start. The caller closes the servers.
func StartRedisSentinel(ctx context.Context, settings ...string) (*RedisSentinel, error) {
	return retryPorts(func() (*RedisSentinel, error) {
		r, err := newRedisSentinel(settings)
		if err == nil {
			err = startAll(ctx, r.nodes)
		}
		if err == nil { // sentinels that find no primary yet retry after a second
			err = startAll(ctx, r.sentinels)
		}
		if err == nil {
			err = errors.Join(r.hurrySentinels(ctx), r.AwaitReplicas(ctx), r.awaitSentinels(ctx))
		}
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		return r, nil
	})
}

// newRedisSentinel returns servers that are not running yet. The sentinels' knowledge of each
// other and of the replica is written to files in advance: they need seconds to find each other.
func newRedisSentinel(settings []string) (r *RedisSentinel, err error) {
	r = &RedisSentinel{}
	for range 2 {
		s, err := newRedis("Redis", settings)
		if err != nil {
			return r, err
		}
		r.nodes = append(r.nodes, s)
		if err := s.choosePorts(); err != nil {
			return r, err
		}
		settings = append(settings[:len(settings):len(settings)], fmt.Sprintf("replicaof 127.0.0.1 %d", s.port))
	}
	var ids []string
	for range 3 {
		s, err := newRedis("Redis Sentinel", nil)
		if err != nil {
			return r, err
		}
		r.sentinels, ids = append(r.sentinels, s), append(ids, newRedisID())
		s.sentinel = true
		if err := s.choosePorts(); err != nil {
			return r, err
		}
	}
	for i, s := range r.sentinels {
		s.settings = r.sentinelSettings(i, ids)
		if err := s.configure(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// sentinelSettings returns the configuration lines of one sentinel.
func (r *RedisSentinel) sentinelSettings(self int, ids []string) []string {
	lines := []string{
		"sentinel myid " + ids[self],
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", redisMaster, r.nodes[0].port),
		"sentinel down-after-milliseconds " + redisMaster + " 60000",
		"sentinel failover-timeout " + redisMaster + " 5000",
		fmt.Sprintf("sentinel known-replica %s 127.0.0.1 %d", redisMaster, r.nodes[1].port),
	}
	for i, s := range r.sentinels {
		if i != self {
			lines = append(lines, fmt.Sprintf("sentinel known-sentinel %s 127.0.0.1 %d %s", redisMaster, s.port, ids[i]))
		}
	}
	return lines
}

// URL returns a URL with all sentinels and the name of the primary, as redis+sentinel://host:port,host:port/NAME.
func (r *RedisSentinel) URL() string { return listURL("redis+sentinel", r.sentinels, "/"+redisMaster) }

// Sentinels returns the servers that watch the nodes, running or not.
func (r *RedisSentinel) Sentinels() []*RedisServer { return r.sentinels }

// hurrySentinels shortens the intervals at which the sentinels check the nodes and inform each other, which are
// two to ten seconds. By default it takes twenty seconds until a replaced primary that returns is made a replica.
func (r *RedisSentinel) hurrySentinels(ctx context.Context) error {
	for _, s := range r.sentinels {
		if _, err := s.Do(ctx, "SENTINEL", "DEBUG", "info-period", "300", "publish-period", "300"); err != nil {
			return err
		}
	}
	return nil
}

// awaitSentinels waits until the sentinels could agree on a fail-over:
// they know each other, and the replica well enough to promote it.
func (r *RedisSentinel) awaitSentinels(ctx context.Context) error {
	return await(ctx, "the sentinels agree", func() (bool, error) {
		for _, s := range r.sentinels {
			if !s.Runs() {
				continue
			}
			reply, err := s.Do(ctx, "SENTINEL", "CKQUORUM", redisMaster)
			if err != nil || reply == nil {
				return false, nil
			}
			reply, err = s.Do(ctx, "SENTINEL", "REPLICAS", redisMaster)
			if err != nil || !knowsReplica(reply) {
				return false, nil
			}
		}
		return true, nil
	})
}

// knowsReplica reports whether a sentinel knows a replica that follows its primary.
func knowsReplica(reply any) bool {
	replicas, _ := reply.([]any)
	for _, each := range replicas {
		fields, _ := each.([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "master-link-status" && fields[i+1] == "ok" {
				return true
			}
		}
	}
	return false
}

// Primary returns the node to which all running sentinels direct clients. They must agree.
func (r *RedisSentinel) Primary(ctx context.Context) (*RedisServer, error) {
	var agreed *RedisServer
	for _, s := range r.sentinels {
		if !s.Runs() {
			continue
		}
		found, err := r.primaryBy(ctx, s)
		if err != nil {
			return nil, err
		}
		if agreed != nil && found != agreed {
			return nil, errors.New("servers: the sentinels do not agree on the primary")
		}
		agreed = found
	}
	return agreed, nil
}

// primaryBy returns the primary according to one sentinel.
func (r *RedisSentinel) primaryBy(ctx context.Context, sentinel *RedisServer) (*RedisServer, error) {
	reply, err := sentinel.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redisMaster)
	if err != nil {
		return nil, err
	}
	if address, _ := reply.([]any); len(address) == 2 {
		for _, s := range r.nodes {
			if s.Addr() == fmt.Sprintf("%v:%v", address[0], address[1]) {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("servers: a sentinel knows of a primary at %v, which is none of the nodes", reply)
}

// AwaitPrimary waits until all running sentinels agree on a running primary, and returns it. After
// the loss of the primary this is its former replica, which the sentinels are asked to promote.
func (r *RedisSentinel) AwaitPrimary(ctx context.Context) (primary *RedisServer, err error) {
	err = await(ctx, "the sentinels have a primary", func() (bool, error) {
		primary, err = r.Primary(ctx)
		if err != nil {
			return false, nil
		}
		if !primary.Runs() {
			return false, r.promote(ctx)
		}
		info, err := primary.Info(ctx)
		return err == nil && info["role"] == "master", nil
	})
	return primary, err
}

// AwaitReady waits until there is a primary, all other running nodes
// follow it, and the sentinels could agree on a further fail-over.
func (r *RedisSentinel) AwaitReady(ctx context.Context) error {
	err := await(ctx, "there is one primary", func() (bool, error) {
		primary, err := r.Primary(ctx) // on a busy machine it may change once more
		if err != nil || !primary.Runs() {
			return false, nil
		}
		for _, s := range r.nodes {
			info, err := s.Info(ctx)
			if s.Runs() && (err != nil || (info["role"] == "master") != (s == primary)) {
				return false, nil
			}
		}
		return true, nil
	})
	return errors.Join(err, r.AwaitReplicas(ctx), r.awaitSentinels(ctx))
}

// promote asks a running sentinel to begin a fail-over, unless a fail-over
// is in progress or cannot begin yet. A fail-over may end without effect.
func (r *RedisSentinel) promote(ctx context.Context) error {
	for _, s := range r.sentinels {
		if !s.Runs() {
			continue
		}
		_, err := s.Do(ctx, "SENTINEL", "FAILOVER", redisMaster)
		if err != nil && (strings.HasPrefix(err.Error(), "INPROG") || strings.HasPrefix(err.Error(), "NOGOODSLAVE")) {
			return nil // the last fail-over is not over for this sentinel, or its data about the replica are old
		}
		return err
	}
	return errors.New("servers: no sentinel runs")
}

// FailOver makes the sentinels promote the replica while the primary is running, as an
// operator does before maintenance, and returns when the new primary accepts writes.
func (r *RedisSentinel) FailOver(ctx context.Context) error {
	old, err := r.Primary(ctx)
	if err != nil {
		return err
	}
	return await(ctx, "there is another primary", func() (bool, error) {
		primary, err := r.AwaitPrimary(ctx)
		if err == nil && primary == old {
			err = r.promote(ctx)
		}
		return primary != old, err
	})
}
