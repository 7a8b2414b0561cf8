package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

// callTimeout is the timeout of senders.
const callTimeout = 10 * time.Second

// part contains the calls that are sent as one command.
type part struct {
	kind   kind
	script *script // of kindWrite
	calls  []*call
	now    int64 // the server's clock, for looks
	err    error // the error of the server or the connection, if any
	to     redirection
}

// looksUpMany reports whether a part is a look-up of several records, which needs no script but the clock.
func (p *part) looksUpMany() bool { return p.kind == kindLook && len(p.calls) > 1 }

// returnsTime reports whether the answer to a part begins with the server's clock.
func (p *part) returnsTime() bool {
	return p.kind == kindWrite || p.kind == kindLook && len(p.calls) == 1
}

// send makes the round trip, and answers the calls.
func (s *sender) send(calls []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	parts := split(calls)
	s.deliver(ctx, parts)
	parts = s.settleWithoutMemory(ctx, parts)
	for _, p := range parts {
		for _, c := range p.calls {
			if c.err == nil {
				c.err = unavailable(p.err)
			}
			close(c.done)
		}
	}
}

// deliver sends parts to the server, with unknown scripts, and follows moved slots.
func (s *sender) deliver(ctx context.Context, parts []*part) {
	s.teach(ctx, parts)
	if s.cluster {
		s.followMove(ctx, parts)
	}
}

// teach sends parts, and then repeats the parts whose scripts the server does not know, with the scripts.
func (s *sender) teach(ctx context.Context, parts []*part) {
	s.exchange(ctx, parts, false)
	if unknown := which(parts, (*rueidis.RedisError).IsNoScript); len(unknown) > 0 {
		s.exchange(ctx, unknown, true)
	}
}

// settleWithoutMemory retries calls that the server refused because its memory is full, except calls that make records:
// the answer of work that was done is worth more than the limit.
func (s *sender) settleWithoutMemory(ctx context.Context, parts []*part) []*part {
	for _, p := range which(parts, isOOM) {
		settle := &part{kind: kindWrite, script: settleScript}
		p.calls = slices.DeleteFunc(p.calls, func(c *call) bool {
			retry := p.kind == kindWrite && c.args[0] != opMake
			if retry {
				settle.calls = append(settle.calls, c)
			}
			return retry
		})
		if len(settle.calls) > 0 {
			s.deliver(ctx, []*part{settle})
			parts = append(parts, settle)
		}
	}
	return parts
}

func isOOM(err *rueidis.RedisError) bool { return strings.HasPrefix(err.Error(), "OOM ") }

// which returns the parts that the server has refused for a reason.
func which(parts []*part, reason func(*rueidis.RedisError) bool) (refused []*part) {
	for _, p := range parts {
		var reported *rueidis.RedisError
		if errors.As(p.err, &reported) && reason(reported) {
			refused = append(refused, p)
		}
	}
	return refused
}

// split groups calls by the command with which they are sent.
func split(calls []*call) (parts []*part) {
	var together [kindRun]*part
	for _, c := range calls {
		if c.kind == kindRun {
			parts = append(parts, &part{kind: c.kind, calls: []*call{c}})
			continue
		}
		if together[c.kind] == nil {
			together[c.kind] = &part{kind: c.kind, script: batchScript, calls: make([]*call, 0, len(calls))}
			parts = append(parts, together[c.kind])
		}
		together[c.kind].calls = append(together[c.kind].calls, c)
	}
	return parts
}

// exchange sends parts together, and assigns the replies to their calls.
func (s *sender) exchange(ctx context.Context, parts []*part, full bool) {
	commands := make([]rueidis.Completed, 0, len(parts)+1)
	looks := false
	for _, p := range parts {
		commands = append(commands, s.command(p, full))
		looks = looks || p.looksUpMany()
	}
	if looks {
		commands = append(commands, s.timed(clockScript).command(s.client.B(), full, nil, nil))
	}
	results, missing := s.roundTrip(ctx, commands, parts[0])
	for i, p := range parts {
		p.err = nil
		if p.looksUpMany() {
			p.now, p.err = results[len(parts)].AsInt64()
		}
		if p.err == nil {
			p.answer(results[i], missing)
		}
	}
}

// roundTrip sends commands together, to the node of the first part. If acknowledgements are required it also waits for
// them, and returns an error if some are missing.
func (s *sender) roundTrip(
	ctx context.Context, commands []rueidis.Completed, first *part,
) ([]rueidis.RedisResult, error) {
	if s.acks.wanted() {
		return s.acknowledged(ctx, commands, first)
	}
	return together(ctx, s.client, commands), nil
}

// command returns the command for a part.
func (s *sender) command(p *part, full bool) rueidis.Completed {
	b, first := s.client.B(), p.calls[0]
	switch p.kind {
	case kindWrite:
		keys, args := make([]string, 0, 1+len(p.calls)), make([]string, 0, 4*len(p.calls))
		keys = append(keys, first.keys[1]) // calls that are sent together have the same index
		for _, c := range p.calls {
			keys, args = append(append(keys, c.keys[0]), c.keys[2:]...), append(args, c.args...)
		}
		return s.timed(p.script).command(b, full, keys, args)
	case kindLook, kindGet:
		if p.returnsTime() {
			return s.timed(readScript).command(b, full, first.keys, nil)
		}
		keys := make([]string, len(p.calls))
		for i, c := range p.calls {
			keys[i] = c.keys[0]
		}
		return b.Mget().Key(keys...).Build()
	default:
		return s.timed(first.script).command(b, full, first.keys, first.args)
	}
}

// answer assigns the server's reply to the calls of a part.
func (p *part) answer(result rueidis.RedisResult, missing error) {
	message, err := result.ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		p.err = err
		return
	}
	replies := []rueidis.RedisMessage{message}
	if p.kind != kindRun {
		replies, p.err = message.ToArray()
	}
	if p.returnsTime() && p.err == nil && len(replies) > 0 {
		p.now, p.err = replies[0].AsInt64()
		replies = replies[1:]
	}
	if p.err == nil && len(replies) != len(p.calls) {
		p.err = unexpected(nil)
	}
	if p.err != nil {
		return
	}
	for i, c := range p.calls {
		c.now, c.reply = p.now, replies[i]
		// A script that has written returns a number.
		if err := c.reply.Error(); err != nil && !c.reply.IsNil() {
			c.err = unavailable(err)
		} else if missing != nil && c.reply.IsInt64() {
			c.err = missing
		}
	}
}

// together sends commands in one round trip, or in a cluster in one to each node.
func together(ctx context.Context, client rueidis.Client, commands []rueidis.Completed) []rueidis.RedisResult {
	if len(commands) == 1 {
		return []rueidis.RedisResult{client.Do(ctx, commands[0])}
	}
	results := client.DoMulti(ctx, commands...)
	if !errors.Is(results[0].NonRedisError(), rueidis.ErrNoSlot) {
		return results
	}
	// No node serves the slot of one of them, so the client has sent none.
	var each sync.WaitGroup
	for i, command := range commands {
		each.Go(func() { results[i] = client.Do(ctx, command) })
	}
	each.Wait()
	return results
}

// clock decodes the reply of TIME.
func clock(result rueidis.RedisResult) (microseconds int64, err error) {
	parts, err := result.AsIntSlice()
	if err != nil {
		return 0, unavailable(err)
	}
	if len(parts) != 2 {
		return 0, unexpected(nil)
	}
	return parts[0]*int64(time.Second/time.Microsecond) + parts[1], nil
}

// ask sends plain commands together. A caller that leaves does not end them for others that wait for the same
// connection.
func (s *sender) ask(ctx context.Context, client rueidis.Client, commands ...rueidis.Completed) []rueidis.RedisResult {
	failed := func(err error) []rueidis.RedisResult {
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(err)}, len(commands))
	}
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	done := make(chan []rueidis.RedisResult, 1)
	if !s.start(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		defer cancel()
		done <- together(ctx, client, commands)
	}) {
		return failed(errClosed)
	}
	select {
	case results := <-done:
		return results
	case <-ctx.Done():
		return failed(ctx.Err())
	}
}

// acks is what a write waits for beside the server's own reply.
type acks struct {
	replicas int
	timeout  time.Duration
	// fsynced counts a replica only when the write is in its append-only file, and requires the same of the server
	// itself.
	fsynced bool
}

func (a acks) wanted() bool { return a.replicas > 0 || a.fsynced }

// acknowledged sends commands and waits until enough replicas have their writes.
func (s *sender) acknowledged(ctx context.Context, commands []rueidis.Completed, first *part) (
	[]rueidis.RedisResult, error,
) {
	ctx = context.WithValue(ctx, blocking{}, s.acks.timeout)
	b, timeout := s.client.B(), s.acks.timeout.Milliseconds()
	wait := b.Wait().Numreplicas(int64(s.acks.replicas)).Timeout(timeout).Build()
	if s.acks.fsynced {
		wait = b.Waitaof().Numlocal(1).Numreplicas(int64(s.acks.replicas)).Timeout(timeout).Build()
	}
	results := s.alone(ctx, append(commands, wait), first)
	last := results[len(results)-1]
	counts, err := []int64(nil), error(nil)
	if s.acks.fsynced {
		counts, err = last.AsIntSlice()
	} else {
		n, waitErr := last.AsInt64()
		counts, err = []int64{1, n}, waitErr
	}
	switch {
	case err != nil:
		return results, unavailable(err)
	case len(counts) != 2 || counts[0] < 1 || counts[1] < int64(s.acks.replicas):
		return results, fmt.Errorf("%w: redis: the write was acknowledged by %d of %d replicas within %s (on the "+
			"server itself: %d)", store.ErrUnavailable, counts[1], s.acks.replicas, s.acks.timeout, counts[0])
	default:
		return results, nil
	}
}
