package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// cluster is a Redis Cluster of three primaries with a replica each. In front of each server is a wire, whose address
// the server announces as its own: clients and its replica come over it.
type cluster struct {
	world   *World
	servers *servers.RedisCluster
	wires   []*wire // as the servers are
	// acts makes those who end a primary or move slots wait for each other: each needs all others in their places. It
	// protects refused.
	acts sync.Mutex
	// refused is how often servers that were killed since have refused a request, by the first word of the error.
	refused map[string]int
}

func openCluster(ctx context.Context, w *World) (database, error) {
	c := &cluster{world: w, refused: make(map[string]int)}
	var err error
	if c.servers, err = servers.StartRedisCluster(ctx); err != nil {
		return nil, err
	}
	if err := c.announce(ctx); err != nil {
		return nil, errors.Join(err, c.servers.Close())
	}
	return c, nil
}

// announce lays the wires, and waits until all servers know each other by them.
func (c *cluster) announce(ctx context.Context) error {
	for i, s := range c.servers.Nodes() {
		wire, err := c.world.network.lay(fmt.Sprintf("redis-%d", i), s.Addr())
		if err != nil {
			return err
		}
		c.wires = append(c.wires, wire)
		if _, err := s.Do(ctx, "CONFIG", "SET", "cluster-announce-port", wire.port()); err != nil {
			return err
		}
		if _, err := s.Do(ctx, "CONFIG", "REWRITE"); err != nil { // for its next life
			return err
		}
	}
	return until(ctx, "the servers know each other by their wires", func() (bool, error) {
		for _, s := range c.servers.Nodes() {
			known, err := s.Do(ctx, "CLUSTER", "NODES")
			if err != nil {
				return false, err
			}
			for _, wire := range c.wires {
				if !strings.Contains(known.(string), wire.addr()+"@") {
					return false, nil
				}
			}
			info, err := s.Info(ctx)
			if err != nil || info["role"] == "slave" && (info["master_link_status"] != "up" || !c.isWire(info["master_port"])) {
				return false, err
			}
		}
		return true, nil
	})
}

func (c *cluster) isWire(port string) bool {
	return slices.ContainsFunc(c.wires, func(w *wire) bool { return w.port() == port })
}

// port is the last part of the address.
func (w *wire) port() string {
	_, port, _ := net.SplitHostPort(w.address) // it comes from a listener
	return port
}

func (c *cluster) url() string {
	addresses := make([]string, len(c.wires))
	for i, wire := range c.wires {
		addresses[i] = wire.addr()
	}
	return "redis+cluster://" + strings.Join(addresses, ",")
}

// direct is no other way: it is the servers who say how to reach them.
func (c *cluster) direct() string    { return c.servers.URL() }
func (c *cluster) front() string     { return "" }
func (c *cluster) clockFile() string { return "" }
func (c *cluster) plain() bool       { return true }
func (c *cluster) close() error      { return c.servers.Close() }

func (c *cluster) busy(context.Context) string { return "" }

func (c *cluster) setClock(context.Context, time.Duration) error { return nil }

// The faults by which a replica takes over.
const (
	primaryKill    = "primary-kill"
	primaryCutKill = "primary-cut-off-and-killed"
)

func (c *cluster) faults() []Fault {
	return append([]Fault{
		{primaryKill, func(ctx context.Context) error { return c.failOver(ctx, primaryKill, 0) }},
		{primaryCutKill, func(ctx context.Context) error {
			return c.failOver(ctx, primaryCutKill, c.world.between(100*time.Millisecond, 600*time.Millisecond))
		}},
		{"slots-move", c.moveSlots},
	}, c.world.wireFaults("node", c.wires...)...)
}

// failOver kills a primary, so that its replica takes over, and starts it again, as a replica. Its connection with the
// replica may be lost for a while before: then it acknowledges writes that no other server will ever have.
func (c *cluster) failOver(ctx context.Context, fault string, cut time.Duration) error {
	c.acts.Lock()
	defer c.acts.Unlock()
	slot := c.world.drawSlot()
	old, err := c.servers.AwaitPrimary(ctx, slot)
	if err != nil {
		return err
	}
	f := history.FailOver{Fault: fault}
	if f.Slots, err = slotsOf(ctx, old); err != nil {
		return err
	}
	if f.Began, err = c.awaitReplica(ctx, old); err != nil {
		return err
	}
	if cut > 0 {
		var lag sync.WaitGroup
		lag.Go(func() { c.wireOf(old).suffer(ctx, lagging, fromServer, cut+time.Second) })
		defer lag.Wait()
		pause(ctx, cut)
	}
	if err := c.noteRefusals(ctx, old); err != nil {
		return err
	}
	err = old.Kill()
	f.Ended = history.Now()
	if err != nil {
		return err
	}
	next, err := c.servers.AwaitPrimary(ctx, slot)
	if err != nil {
		return err
	}
	if next == old {
		return fmt.Errorf("the primary of slot %d is back, and was to be replaced", slot)
	}
	c.world.noteFailOver(f)
	if err := old.Restart(); err != nil {
		return err
	}
	return until(ctx, "the old primary follows the new one", func() (bool, error) {
		info, err := old.Info(ctx)
		return err == nil && info["role"] == "slave" && info["master_link_status"] == "up", nil
	})
}

// metMoved is a reply that says that a slot is elsewhere.
const metMoved = "met MOVED"

// noteRefusals keeps how often a server has refused requests because of what happens to the cluster.
func (c *cluster) noteRefusals(ctx context.Context, s *servers.RedisServer) error {
	reply, err := s.Do(ctx, "INFO", "errorstats")
	if err != nil {
		return err
	}
	for line := range strings.Lines(reply.(string)) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), ":count=")
		name = strings.TrimPrefix(name, "errorstat_")
		if slices.Contains([]string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING"}, name) {
			n, err := strconv.Atoi(count)
			if err != nil {
				return err
			}
			c.refused["met "+name] += n
		}
	}
	_, err = s.Do(ctx, "CONFIG", "RESETSTAT") // what was noted is not noted again
	return err
}

// harvestRefusals adds what the nodes of the run have met to the faults.
func (c *cluster) harvestRefusals(ctx context.Context, run *history.Run) error {
	c.acts.Lock()
	defer c.acts.Unlock()
	for _, s := range c.servers.Nodes() {
		if err := c.noteRefusals(ctx, s); err != nil {
			return err
		}
	}
	maps.Copy(run.Faults, c.refused)
	clear(c.refused)
	return nil
}

// awaitReplica waits until the replica of a primary has all that was written by a moment, which it returns.
func (c *cluster) awaitReplica(ctx context.Context, primary *servers.RedisServer) (since int64, err error) {
	replica, err := c.replicaOf(ctx, primary)
	if err != nil {
		return 0, err
	}
	err = until(ctx, "the replica has what was written", func() (bool, error) {
		since = history.Now()
		written, err := primary.Info(ctx)
		if err != nil {
			return false, err
		}
		has, err := replica.Info(ctx)
		return offset(has["slave_repl_offset"]) >= offset(written["master_repl_offset"]), err
	})
	return since, err
}

// replicaOf is the server that follows a primary.
func (c *cluster) replicaOf(ctx context.Context, primary *servers.RedisServer) (*servers.RedisServer, error) {
	for _, s := range c.servers.Nodes() {
		info, err := s.Info(ctx)
		if err != nil {
			return nil, err
		}
		if info["role"] == "slave" && info["master_port"] == c.wireOf(primary).port() {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no server follows the primary at %s", primary.Addr())
}

func offset(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// wireOf is the wire in front of a server.
func (c *cluster) wireOf(s *servers.RedisServer) *wire {
	return c.wires[slices.Index(c.servers.Nodes(), s)]
}

// slotsOf are the slots that a server says it serves.
func slotsOf(ctx context.Context, s *servers.RedisServer) (slots [][2]int, err error) {
	known, err := s.Do(ctx, "CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(known.(string)) {
		fields := strings.Fields(line)
		if len(fields) < 8 || !strings.Contains(fields[2], "myself") {
			continue
		}
		for _, field := range fields[8:] {
			first, last, isRange := strings.Cut(field, "-")
			if !isRange {
				last = first
			}
			from, err := strconv.Atoi(first)
			if err != nil {
				continue // a slot that moves: it is among the others as well, until it has
			}
			to, err := strconv.Atoi(last)
			if err != nil {
				return nil, err
			}
			slots = append(slots, [2]int{from, to})
		}
	}
	return slots, nil
}

// slotsMoved is how many slots are moved at a time.
const slotsMoved = 24

// moveSlots moves slots from one primary to another one while they are used.
func (c *cluster) moveSlots(ctx context.Context) error {
	c.acts.Lock()
	defer c.acts.Unlock()
	to, err := c.servers.AwaitPrimary(ctx, c.world.drawSlot())
	if err != nil {
		return err
	}
	for moved := 0; moved < slotsMoved; {
		slot := c.world.drawSlot()
		from, err := c.servers.Primary(ctx, slot)
		if err != nil {
			return err
		}
		if from == to {
			continue
		}
		if err := c.servers.BeginMove(ctx, slot, to); err != nil {
			return err
		}
		pause(ctx, c.world.between(0, 40*time.Millisecond)) // some keys are here by then, some there
		if err := c.servers.EndMove(ctx, slot, to); err != nil {
			return err
		}
		moved++
	}
	return nil
}

// until waits until something is so.
func until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, switchLimit)
	defer cancel()
	for {
		so, err := is()
		if so || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it is not so that %s: %w", what, ctx.Err())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
