package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

func tryRedisPersistence(_ context.Context, p *redis, r *Result) error {
	hidden := false
	p.each(r, func(node redisNode, on string) {
		fsync, seen := node.setting("appendfsync")
		hidden = hidden || !seen
		switch {
		case node.info["aof_enabled"] == "0":
			save, _ := node.setting("save")
			r.find(Broken, "appendonly yes and appendfsync always", "appendonly is off%s: a restart loses all since the last "+
				"snapshot (save %q)",
				on, save)
		case fsync == "no":
			r.find(Broken, "appendfsync always", "appendfsync%s is no: a power loss loses about the last half minute", on)
		case fsync == "everysec":
			r.find(Note, "appendfsync always, where a second of records must not be lost",
				"appendfsync%s is everysec: a power loss loses about the last second", on)
		}
		if during, _ := node.setting("no-appendfsync-on-rewrite"); during == "yes" && node.info["aof_enabled"] == "1" {
			r.find(Weak, "no-appendfsync-on-rewrite no",
				"no-appendfsync-on-rewrite%s is yes: while the server saves or rewrites, "+
					"a power loss loses about the last half minute, whatever appendfsync says", on)
		}
		r.saw("aof_enabled=%s appendfsync=%s%s", node.info["aof_enabled"], fsync, on)
		for _, name := range []string{"aof_last_write_status", "aof_last_bgrewrite_status"} {
			if status := node.info[name]; status != "ok" && status != "" && node.info["aof_enabled"] == "1" {
				r.find(Broken, "look at the server's log and its disk", "%s%s is %s: the append-only file is not written", name,
					on, status)
			}
		}
		if status := node.info["rdb_last_bgsave_status"]; status != "ok" && status != "" {
			r.find(Weak, "look at the server's log and its disk", "the last snapshot%s failed (rdb_last_bgsave_status is %s)",
				on, status)
		}
	})
	if hidden && len(r.Findings) == 0 {
		return errNotTried("the server does not show how it writes to its disk: allow +config|get, or see that " +
			"appendfsync is always")
	}
	return nil
}

// writes is the number of writes that are timed.
const writes = 21

func tryRedisWriteTime(ctx context.Context, p *redis, r *Result) error {
	var wrote, looked []time.Duration
	key := p.key()
	for i := range writes {
		begun := time.Now()
		err := p.client.Do(ctx, p.client.B().Set().Key(key).Value(strconv.Itoa(i)).ExSeconds(keyLife).Build()).Error()
		if err != nil {
			return err
		}
		wrote = append(wrote, time.Since(begun))
		begun = time.Now()
		if err := p.client.Do(ctx, p.client.B().Get().Key(key).Build()).Error(); err != nil {
			return err
		}
		looked = append(looked, time.Since(begun))
	}
	r.saw("a write takes %s, a look %s", round(median(wrote)), round(median(looked)))
	if slow := median(wrote); slow > p.slowWrite {
		r.find(Weak, "give the append-only file a faster disk", "a write takes %s, in the middle of %d", round(slow), writes)
	}
	p.each(r, func(node redisNode, on string) {
		if delayed := node.number("aof_delayed_fsync"); delayed > 0 {
			r.find(Note, "give the append-only file a faster disk of its own",
				"the disk%s did not keep up %d times since the server was started (aof_delayed_fsync)", on, delayed)
		}
	})
	return nil
}

// waitFor is how long replicas may take to receive a write.
const waitFor = 3 * time.Second

func tryRedisReplicas(ctx context.Context, p *redis, r *Result) error {
	attached := int64(0)
	p.each(r, func(node redisNode, on string) {
		replicas := node.number("connected_slaves")
		attached = max(attached, replicas)
		r.saw("%d replicas%s", replicas, on)
		least, seen := node.setting("min-replicas-to-write")
		if replicas > 0 && seen && least == "0" {
			r.find(Weak, "min-replicas-to-write 1, and redis.WithReplicas in the service; where a lost key costs money, use "+
				"PostgreSQL",
				"%d replicas follow the server%s, which takes writes also when none of them can have it (min-replicas-to-write "+
					"is 0)", replicas, on)
		}
	})
	if attached == 0 {
		return nil
	}
	key, had := p.key(), int64(0)
	err := p.client.Dedicated(func(c rueidis.DedicatedClient) error {
		if err := c.Do(ctx, c.B().Set().Key(key).Value("here").ExSeconds(keyLife).Build()).Error(); err != nil {
			return err
		}
		var err error
		had, err = c.Do(ctx, c.B().Wait().Numreplicas(1).Timeout(waitFor.Milliseconds()).Build()).AsInt64()
		return err
	})
	if refused, ok := rueidis.IsRedisErr(err); ok {
		r.find(Weak, "allow +wait", "WAIT is refused: %s", refused.Error())
		return nil
	}
	if err == nil && had == 0 {
		r.find(Weak, "look at the network to the replicas, and at their logs", "no replica had a write within %s (WAIT)",
			waitFor)
	}
	return err
}

// slots is the number of slots in a cluster.
const slots = 16384

func tryRedisCluster(ctx context.Context, p *redis, r *Result) error {
	if !p.cluster {
		r.saw("no cluster")
		return nil
	}
	var failed error
	p.each(r, func(node redisNode, on string) {
		served, err := servedSlots(ctx, node)
		if err != nil {
			failed = errors.Join(failed, err)
			return
		}
		state := "ok"
		// A user with the rights of the guide may not read the state. The slots show nearly the same.
		if text, err := node.client.Do(ctx, node.client.B().ClusterInfo().Build()).ToString(); err == nil {
			state = fields(strings.TrimPrefix(text, "txt:"))["cluster_state"] // the client puts the type first
		}
		r.saw("%s with %d slots%s", state, served, on)
		if state != "ok" || served != slots {
			r.find(Broken, "bring the missing primaries back, or give their slots to others (redis-cli --cluster fix)",
				"the cluster, as seen%s, is %s: %d of %d slots are served", on, state, served, slots)
		}
		if full, seen := node.setting("cluster-require-full-coverage"); seen && full == "yes" {
			r.find(Note, "cluster-require-full-coverage no", "while one primary is gone the whole cluster refuses%s "+
				"(cluster-require-full-coverage is yes)", on)
		}
	})
	return failed
}

// servedSlots returns the number of slots with a primary, as a node knows it.
func servedSlots(ctx context.Context, node redisNode) (served int64, err error) {
	ranges, err := node.client.Do(ctx, node.client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return 0, err
	}
	for i := range ranges {
		parts, err := ranges[i].ToArray()
		if err != nil || len(parts) < 3 {
			return 0, errors.Join(errors.New("CLUSTER SLOTS"), err)
		}
		first, err1 := parts[0].AsInt64()
		last, err2 := parts[1].AsInt64()
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		served += last - first + 1
	}
	return served, nil
}

func tryRedisClock(ctx context.Context, p *redis, r *Result) error {
	var failed error
	var least, most []time.Duration
	p.each(r, func(node redisNode, on string) {
		all, err := readClock(ctx, func(ctx context.Context) (time.Time, error) {
			parts, err := node.client.Do(ctx, node.client.B().Time().Build()).AsStrSlice()
			if err != nil || len(parts) != 2 {
				return time.Time{}, errors.Join(errors.New("TIME"), err)
			}
			seconds, err1 := strconv.ParseInt(parts[0], 10, 64)
			micros, err2 := strconv.ParseInt(parts[1], 10, 64)
			return time.Unix(seconds, micros*1000), errors.Join(err1, err2)
		})
		if err != nil {
			failed = errors.Join(failed, err)
			return
		}
		judgeClock(r, "the server's clock"+on, all)
		l, m := skew(all)
		least, most = append(least, l), append(most, m)
	})
	if failed != nil {
		return failed
	}
	if apart := slices.Max(least) - slices.Min(most); apart > maxSkew {
		r.find(Weak, "let NTP or its like set the clocks of all servers",
			"the clocks of the primaries are at least %s apart", round(apart))
	}
	return nil
}

func tryRedisPubSub(ctx context.Context, p *redis, r *Result) error {
	do := "let the user subscribe and publish (+@pubsub &" + p.prefix + ":*), past what swallows messages"
	channel := p.prefix + ":doctor:" + rand.Text()
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	arrived, ended, ready := make(chan struct{}, 1), make(chan error, 1), make(chan struct{}, 1)
	go func() {
		c, release := p.other.Dedicate()
		defer release()
		lost := c.SetPubSubHooks(rueidis.PubSubHooks{
			OnMessage: func(rueidis.PubSubMessage) { signal(arrived) },
			OnSubscription: func(s rueidis.PubSubSubscription) {
				if s.Kind == "subscribe" {
					signal(ready)
				}
			},
		})
		if err := c.Do(listening, c.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
			ended <- err
			return
		}
		select {
		case err := <-lost:
			ended <- err
		case <-listening.Done():
			ended <- nil
		}
	}()
	select {
	case <-ready:
	case err := <-ended:
		r.find(Weak, do, "SUBSCRIBE is refused: %v", err)
		return nil
	case <-ctx.Done():
		r.find(Weak, do, "SUBSCRIBE was not answered")
		return ctx.Err()
	}
	begun := time.Now()
	if err := p.client.Do(ctx, p.client.B().Publish().Channel(channel).Message("here").Build()).Error(); err != nil {
		r.find(Weak, do, "PUBLISH is refused: %v", err)
		return nil
	}
	select {
	case <-arrived:
		r.saw("after %s", round(time.Since(begun)))
	case <-time.After(p.arrival):
		r.find(Weak, do, "a message that was published did not arrive within %s", p.arrival)
	case <-ctx.Done():
		return ctx.Err()
	}
	cancel()
	<-ended
	return nil
}

// signal sends to a channel without waiting.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// tryRedisPrivileges checks the user, if the server permits it: a user with the fewest rights may not read its own.
func tryRedisPrivileges(ctx context.Context, p *redis, r *Result) error {
	const least = "make a user of its own, by the ACL line of docs/redis.md, and give the default user a password, or " +
		"turn it off"
	me, err := p.client.Do(ctx, p.client.B().AclWhoami().Build()).ToString()
	if _, refused := rueidis.IsRedisErr(err); refused {
		r.saw("the user may not ask who it is, as it should be")
		return nil
	}
	if err != nil {
		return err
	}
	user, err := p.client.Do(ctx, p.client.B().AclGetuser().Username(me).Build()).AsMap()
	if _, refused := rueidis.IsRedisErr(err); refused {
		r.saw("the user is %s, and may not look at users, as it should be", me)
		return nil
	}
	if err != nil {
		return err
	}
	flagged, field := user["flags"], user["commands"]
	flags, _ := flagged.AsStrSlice()
	commands, _ := field.ToString()
	r.saw("the user is %s, with %s", me, commands)
	severity := Weak
	if p.loopback() {
		severity = Note // only this machine reaches it
	}
	if slices.Contains(flags, "nopass") {
		r.find(severity, least, "the user %s has no password, and may do %s: so may everyone who reaches the server", me,
			commands)
	} else if strings.Contains(commands, "+@all") || strings.Contains(commands, "+@dangerous") {
		r.find(Weak, least, "the user %s may do %s, also FLUSHALL and CONFIG SET, which the store does not need", me,
			commands)
	}
	return nil
}

// loopback reports whether the server is on this machine.
func (p *redis) loopback() bool {
	host, _, err := net.SplitHostPort(p.address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
