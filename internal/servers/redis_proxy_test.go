package servers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// redisConn is a client that sends what it is told.
type redisConn struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func connectRedis(t *testing.T, url string) *redisConn {
	t.Helper()
	conn, err := dialRedis(t.Context(), url)
	must(t, err)
	must(t, conn.SetDeadline(time.Now().Add(startLimit)))
	t.Cleanup(func() { _ = conn.Close() }) // the test may have broken it
	return &redisConn{t: t, conn: conn, in: bufio.NewReader(conn)}
}

// send sends commands together, each of them words with a space between them.
func (c *redisConn) send(commands ...string) {
	c.t.Helper()
	var text []byte
	for _, command := range commands {
		text = append(text, encodeCommand(strings.Fields(command)...)...)
	}
	_, err := c.conn.Write(text)
	must(c.t, err)
}

// want: the next replies are these.
func (c *redisConn) want(replies ...string) {
	c.t.Helper()
	for _, want := range replies {
		got, err := readRESP(c.in, nil)
		must(c.t, err)
		if fmt.Sprint(got) != want {
			c.t.Errorf("the reply is %v, want %s", got, want)
		}
	}
}

// wantEnd: the connection ends without a further reply.
func (c *redisConn) wantEnd() {
	c.t.Helper()
	if got, err := readRESP(c.in, nil); err == nil {
		c.t.Errorf("the reply is %v, want the end of the connection", got)
	}
}

// proxiedRedis is a proxy in front of the shared server, a client through it, and a key.
func proxiedRedis(t *testing.T) (p *RedisProxy, c *redisConn, key string) {
	t.Helper()
	s := Redis(t)
	p = NewRedisProxy(t, s.URL())
	return p, connectRedis(t, p.URL()), s.Prefix(t) + "key"
}

// commandIs matches one command by its begin.
func commandIs(begin string) func(string) bool {
	return func(command string) bool { return strings.HasPrefix(command, begin) }
}

func TestRedisReplyIsCut(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	p.CutReply(commandIs("INCR " + key))
	c.send("GET "+key, "INCR "+key)
	must(t, p.AwaitSprung(t.Context(), 1))
	again := connectRedis(t, p.URL())
	again.send("INCR " + key)
	again.want("2")
	for { // what was before it may arrive
		if _, err := readRESP(c.in, nil); err != nil {
			break
		}
	}
}

func TestRedisRequestIsCut(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	p.CutRequest(commandIs("INCR " + key))
	c.send("INCR " + key)
	c.wantEnd()
	again := connectRedis(t, p.URL())
	again.send("INCR " + key)
	again.want("1")
}

func TestRedisReplyIsHeld(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	release := p.HoldReply(commandIs("INCR " + key))
	c.send("INCR "+key, "GET "+key)
	must(t, p.AwaitSprung(t.Context(), 1))
	wantReply(t, Redis(t), "1", "GET", key)
	release()
	c.want("1", "1")
}

// TestRedisAnswersAreInOrder: an answer of the proxy comes after the replies to what was sent before, and the command
// has not reached the server.
func TestRedisAnswersAreInOrder(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	p.Answer(commandIs("INCR "+key), "LOADING not yet", 2)
	c.send("SET "+key+" 5", "INCR "+key, "GET "+key, "INCR "+key, "INCR "+key)
	c.want("OK", "LOADING not yet", "5", "LOADING not yet", "6")
	p.Answer(commandIs("INCR "+key), "LOADING not yet", 1)
	p.Disarm()
	c.send("INCR " + key)
	c.want("7")
}

func TestRedisRoundTripsAreCounted(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	c.send("PING")
	c.want("PONG")
	c.send("SET "+key+" 5", "GET "+key)
	c.want("OK", "5")
	c.send("PING", "GET "+key) // a client that makes sure of its connection
	c.want("PONG", "5")
	if trips, commands := p.RoundTrips(), p.Commands(); trips != 2 || commands != 3 {
		t.Errorf("%d round trips with %d commands, want 2 with 3", trips, commands)
	}
}

func TestRedisRepliesAreDelayed(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	p.Delay(50 * time.Millisecond)
	begun := time.Now()
	c.send("GET "+key, "GET "+key)
	c.want("<nil>", "<nil>")
	if took := time.Since(begun); took < 50*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

func TestRedisRepliesTrickle(t *testing.T) {
	t.Parallel()
	p, c, key := proxiedRedis(t)
	text := strings.Repeat("x", 1000)
	c.send("SET " + key + " " + text)
	c.want("OK")
	p.Throttle(10_000)
	begun := time.Now()
	c.send("GET " + key)
	c.want(text)
	if took := time.Since(begun); took < 100*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

// TestRedisMessagesAreNoReplies: what a subscriber gets does not belong to a command, in either version of the
// protocol.
func TestRedisMessagesAreNoReplies(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2", "3"} {
		p, c, key := proxiedRedis(t)
		c.send("HELLO "+version, "SUBSCRIBE "+key)
		if _, err := readRESP(c.in, nil); err != nil {
			t.Fatal(err)
		}
		c.want("[subscribe " + key + " 1]")
		do(t, Redis(t), "PUBLISH", key, "hello")
		c.want("[message " + key + " hello]")
		c.send("UNSUBSCRIBE " + key)
		c.want("[unsubscribe " + key + " 0]")
		p.Answer(commandIs("GET"), "LOADING not yet", 1)
		c.send("SET "+key+" 5", "GET "+key)
		c.want("OK", "LOADING not yet")
	}
}

// TestProxiedClusterNamesTheProxies: clients are sent to proxies, and replicas go through them.
func TestProxiedClusterNamesTheProxies(t *testing.T) {
	t.Parallel()
	c := NewProxiedRedisCluster(t, "cluster-node-timeout 3600000")
	first, second := c.Proxies()[0], c.Proxies()[1]
	if !strings.Contains(c.URL(), first.Addr()) {
		t.Errorf("URL = %s, want %s in it", c.URL(), first.Addr())
	}
	client := connectRedis(t, second.URL())
	client.send("SET " + slotOne + " value")
	client.want("MOVED 1 " + first.Addr())
	client = connectRedis(t, first.URL())
	client.send("SET " + slotOne + " value")
	client.want("OK")
	must(t, c.AwaitReady(t.Context()))

	first.Refuse(true)
	first.DropAll()
	client.wantEnd()
	do(t, c.Nodes()[0], "SET", slotOne, "unseen by the replica")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.AwaitReplicas(ctx); err == nil {
		t.Error("the replica has what was written while its link was cut")
	}
	first.Refuse(false)
	must(t, c.AwaitReady(t.Context()))
}
