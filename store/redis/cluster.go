package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/onceward/onceward/internal/backoff"
	"github.com/redis/rueidis"
)

const (
	// movingTime is how long a call is retried while its slot moves to another node.
	movingTime = 2 * time.Second
	// minMovingPause and maxMovingPause are the growing pauses between these retries.
	minMovingPause, maxMovingPause = 5 * time.Millisecond, 100 * time.Millisecond
	// nextNode is how long a node is waited for before the next one is queried as well.
	nextNode = 100 * time.Millisecond
)

// redirection is the node of a cluster that another node named instead of an answer.
type redirection struct {
	address string // empty if there was none
	asking  bool   // the redirection is for this call only, not for the slot
}

// followMove retries parts that the server did not execute because their slot, or some of the keys in it, are
// elsewhere.
func (s *sender) followMove(ctx context.Context, parts []*part) {
	for start, times := time.Now(), 1; time.Since(start) < movingTime; times++ {
		moving := which(parts, isMoving)
		if len(moving) == 0 || !backoff.Sleep(ctx, backoff.Jittered(minMovingPause, maxMovingPause, times)) {
			return
		}
		for _, p := range moving {
			p.to = redirected(p.err)
		}
		s.teach(ctx, moving)
	}
}

func isMoving(err *rueidis.RedisError) bool {
	_, moved := err.IsMoved()
	_, ask := err.IsAsk()
	return moved || ask || err.IsTryAgain()
}

// redirected returns the redirection in an error.
func redirected(err error) (to redirection) {
	var reported *rueidis.RedisError
	if errors.As(err, &reported) {
		if to.address, to.asking = reported.IsAsk(); !to.asking {
			to.address, _ = reported.IsMoved()
		}
	}
	return to
}

// alone sends commands, the last of which blocks, on a connection of their own: the server counts the writes of the
// connection, and no later command may wait. In a cluster the client would follow a redirection without the blocking
// command, so the caller follows it.
func (s *sender) alone(ctx context.Context, commands []rueidis.Completed, first *part) []rueidis.RedisResult {
	if !s.cluster {
		return s.client.DoMulti(ctx, commands...)
	}
	node := s.node(ctx, first)
	switch {
	case node == nil:
		client, release := s.client.Dedicate()
		defer s.running.Go(release) // release sends a command to the server
		return client.DoMulti(ctx, commands...)
	case first.to.asking:
		asking := s.client.B().Arbitrary("ASKING").Build()
		return node.DoMulti(ctx, append([]rueidis.Completed{asking}, commands...)...)[1:]
	default:
		return node.DoMulti(ctx, commands...)
	}
}

// node returns the node that a part was redirected to, or nil.
func (s *sender) node(ctx context.Context, p *part) rueidis.Client {
	if p.to.address == "" {
		return nil
	}
	if node := s.client.Nodes()[p.to.address]; node != nil {
		return node
	}
	// The client does not know a node without slots, and adds it when it is redirected itself.
	ctx = context.WithValue(ctx, blocking{}, nil) // not on a connection for commands that block
	_ = s.client.Do(ctx, s.client.B().Exists().Key(p.calls[0].keys[0]).Build()).Error()
	return s.client.Nodes()[p.to.address]
}

// askAny sends a command that every node of a cluster can answer, and returns the first answer with its node. It tries
// one node after the other, but does not wait long for a node that does not answer.
func (s *sender) askAny(ctx context.Context, command func(rueidis.Builder) rueidis.Completed) (
	address string, answer rueidis.RedisResult,
) {
	type answered struct {
		address string
		rueidis.RedisResult
	}
	nodes := s.client.Nodes()
	addresses, answers := slices.Collect(maps.Keys(nodes)), make(chan answered, len(nodes))
	last := answered{"", rueidis.NewErrorResult(errors.New("the client knows no node of the cluster"))}
	for asked, failed := 0, 0; failed < len(addresses); {
		if asked < len(addresses) {
			address, node := addresses[asked], nodes[addresses[asked]]
			asked++
			go func() { answers <- answered{address, s.ask(ctx, node, command(node.B()))[0]} }()
		}
		select {
		case last = <-answers:
			if last.Error() == nil {
				return last.address, last.RedisResult
			}
			failed++
		case <-time.After(nextNode):
		}
	}
	return last.address, last.RedisResult
}

// primaries returns the servers that hold records, one client for each, whether they answer or not.
func (s *sender) primaries(ctx context.Context) ([]rueidis.Client, error) {
	if !s.cluster {
		return []rueidis.Client{s.client}, nil
	}
	asked, reply := s.askAny(ctx, func(b rueidis.Builder) rueidis.Completed { return b.ClusterSlots().Build() })
	ranges, err := reply.ToArray()
	if err != nil {
		return nil, unavailable(err)
	}
	known, primaries := s.client.Nodes(), make(map[string]rueidis.Client)
	for i := range ranges {
		address, err := primaryOf(&ranges[i], asked)
		if err != nil {
			return nil, err
		}
		if primaries[address] = known[address]; known[address] == nil {
			return nil, unavailable(fmt.Errorf("the client does not know the primary %s yet", address))
		}
	}
	if len(primaries) == 0 {
		return nil, unavailable(errors.New("the cluster has no primary"))
	}
	return slices.Collect(maps.Values(primaries)), nil
}

// primaryOf returns the address of the primary in a range of CLUSTER SLOTS: a host and a port, or a port of the host
// that answered.
func primaryOf(slots *rueidis.RedisMessage, asked string) (address string, err error) {
	parts, err := slots.ToArray()
	if err != nil || len(parts) < 3 {
		return "", unexpected(err)
	}
	primary, err := parts[2].ToArray()
	if err != nil || len(primary) < 2 {
		return "", unexpected(err)
	}
	port, err := primary[1].AsInt64()
	if err != nil {
		return "", unexpected(err)
	}
	host, err := primary[0].ToString()
	if err != nil || host == "" {
		host, _, err = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, strconv.FormatInt(port, 10)), err
}
