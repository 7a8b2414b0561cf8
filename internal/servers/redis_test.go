package servers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/proc"
)

// do asks a server, which must answer.
func do(t testing.TB, s *RedisServer, command ...string) any {
	t.Helper()
	reply, err := s.Do(t.Context(), command...)
	must(t, err)
	return reply
}

// wantReply: a server answers as it should.
func wantReply(t testing.TB, s *RedisServer, want any, command ...string) {
	t.Helper()
	if got := do(t, s, command...); got != want {
		t.Errorf("%v = %v, want %v", command, got, want)
	}
}

func TestSharedRedisIsSafeByDefault(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	if s != Redis(t) || !s.Shared() {
		t.Error("two calls gave two servers")
	}
	for setting, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "bind": "127.0.0.1",
	} {
		if got, _ := do(t, s, "CONFIG", "GET", setting).([]any); len(got) != 2 || got[1] != want {
			t.Errorf("%s = %v, want %s", setting, got, want)
		}
	}
}

func TestRepliesOfRedis(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	key := s.Prefix(t) + "key"
	wantReply(t, s, nil, "GET", key)
	wantReply(t, s, "OK", "SET", key, "a\r\nb")
	wantReply(t, s, "a\r\nb", "GET", key)
	wantReply(t, s, int64(1), "DEL", key)
	if got, _ := do(t, s, "MGET", key, key).([]any); len(got) != 2 || got[0] != nil {
		t.Errorf("MGET = %v", got)
	}
	var refused RedisError
	if _, err := s.Do(t.Context(), "NO-SUCH-COMMAND"); !errors.As(err, &refused) || !strings.HasPrefix(refused.Error(), "ERR ") {
		t.Errorf("err = %v, want the server's own words", err)
	}
}

// TestRedisIsKilledAndRestarted: what is acknowledged is there after the server was killed, and nothing answers before.
func TestRedisIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	s := NewRedis(t)
	t.Logf("the server started in %v", time.Since(begun))
	do(t, s, "SET", "key", "kept")
	pid := s.proc.PID()
	must(t, s.Kill())
	must(t, proc.AwaitGone(pid))
	if s.Runs() {
		t.Error("a killed server is said to run")
	}
	if _, err := s.Do(t.Context(), "PING"); err == nil {
		t.Error("a killed server answers")
	}
	must(t, s.Kill()) // a second time does nothing
	must(t, s.Restart())
	wantReply(t, s, "kept", "GET", "key")

	must(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Do(ctx, "GET", "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server: %v, want the end of the context", err)
	}
	must(t, s.Resume())
	wantReply(t, s, "kept", "GET", "key")

	must(t, s.Pause())
	must(t, s.Stop())
	must(t, s.Restart())
	wantReply(t, s, "kept", "GET", "key")
	must(t, s.Close())
	must(t, s.Close())
	if err := s.Restart(); err == nil {
		t.Error("a closed server was started again")
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestFailedRedisStartShowsTheLog(t *testing.T) {
	t.Parallel()
	if _, err := StartRedis(t.Context(), "no-such-setting 1"); err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("err = %v, want the server's own words", err)
	}
}

// TestTakenRedisPortIsSeen: another server on the port is not mistaken for the one that was started.
func TestTakenRedisPortIsSeen(t *testing.T) {
	t.Parallel()
	other := Redis(t)
	s, err := newRedis("Redis", nil)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	must(t, s.choosePorts())
	s.port, s.url = other.port, other.url
	must(t, s.configure())
	if err := s.start(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("err = %v, want that the port is taken", err)
	}
}

func TestOtherRedisIsUsedAndLeftAlone(t *testing.T) {
	t.Parallel()
	private := NewRedis(t)
	do(t, private, "CONFIG", "SET", "requirepass", "hidden")
	private.url = strings.Replace(private.url, "redis://", "redis://:hidden@", 1)
	server, err := useRedis(t.Context(), private.url+"/3")
	must(t, err)
	t.Run("with keys", func(t *testing.T) { do(t, server, "SET", "{a}"+server.Prefix(t)+"key", "value") })
	wantReply(t, server, int64(0), "DBSIZE")
	for name, do := range map[string]func() error{
		"Kill": server.Kill, "Restart": server.Restart, "Pause": server.Pause, "Resume": server.Resume, "Stop": server.Stop,
	} {
		if err := do(); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, server.Close())
	wantReply(t, private, "PONG", "PING")
}

func TestUnusableRedisIsNamedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"localhost", "redis://:hidden@127.0.0.1:1", "http://:hidden@localhost/", "redis://:hidden@localhost:port/"} {
		_, err := useRedis(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), redisVariable) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: err = %v, want the name of the variable in it, and no password", url, err)
		}
	}
}

func TestRedisClientsAreDropped(t *testing.T) {
	t.Parallel()
	s := NewRedis(t)
	conn, err := dialRedis(t.Context(), s.url)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write(encodeCommand("BLPOP", "nothing", "0"))
	must(t, err)
	must(t, await(t.Context(), "the client waits", func() (bool, error) {
		info, err := s.Info(t.Context())
		return info["blocked_clients"] == "1", err
	}))
	must(t, s.DropClients(t.Context()))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes were read from a connection that was dropped", n)
	}
}

// slotOne is a key in slot 1, which belongs to node 0 at first.
const slotOne = "{22179}"

// TestClusterLosesAPrimaryAndMovesSlots: one cluster goes through everything, because its start takes seconds.
func TestClusterLosesAPrimaryAndMovesSlots(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts a cluster of its own; TestProxiedClusterNamesTheProxies has one too")
	begun := time.Now()
	c := NewRedisCluster(t)
	t.Logf("the cluster started in %v", time.Since(begun))
	if urls := strings.Count(c.URL(), ":"); !strings.HasPrefix(c.URL(), "redis+cluster://127.0.0.1:") || urls != 7 {
		t.Errorf("URL = %s", c.URL())
	}
	nodes := c.Nodes()
	wantReply(t, nodes[0], int64(1), "CLUSTER", "KEYSLOT", slotOne)
	do(t, nodes[0], "SET", slotOne, "kept")
	wantMove(t, c, nodes[1])
	wantMove(t, c, nodes[0])

	wantReply(t, nodes[0], int64(1), "WAIT", "1", "0")
	must(t, nodes[0].Kill())
	begun = time.Now()
	primary, err := c.AwaitPrimary(t.Context(), 1)
	must(t, err)
	t.Logf("the replica took over in %v", time.Since(begun))
	if primary != nodes[3] {
		t.Errorf("the new primary is %s", primary.Addr())
	}
	wantReply(t, primary, "kept", "GET", slotOne)
	must(t, nodes[0].Restart())
	must(t, c.AwaitReady(t.Context()))
	must(t, await(t.Context(), "the old primary is a replica", func() (bool, error) {
		info, err := nodes[0].Info(t.Context())
		return info["role"] == "slave" && info["master_link_status"] == "up", err
	}))
}

// wantMove: a slot with a key in it moves to another primary, and clients are sent there.
func wantMove(t *testing.T, c *RedisCluster, to *RedisServer) {
	t.Helper()
	from, err := c.Primary(t.Context(), 1)
	must(t, err)
	must(t, c.BeginMove(t.Context(), 1, to))
	var refused RedisError
	if _, err := from.Do(t.Context(), "GET", slotOne+"other"); !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "ASK 1 ") {
		t.Errorf("err = %v, want ASK", err)
	}
	must(t, c.EndMove(t.Context(), 1, to))
	if _, err := from.Do(t.Context(), "GET", slotOne); !errors.As(err, &refused) || err.Error() != "MOVED 1 "+to.Addr() {
		t.Errorf("err = %v, want MOVED to %s", err, to.Addr())
	}
	wantReply(t, to, "kept", "GET", slotOne)
}

// TestSentinelsPromoteAndDemote: a replica takes over from a primary that is killed, which follows it when it is back.
func TestSentinelsPromoteAndDemote(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts five servers; the tests of store/redis start them too")
	begun := time.Now()
	r := NewRedisSentinel(t)
	t.Logf("primary, replica and sentinels started in %v", time.Since(begun))
	first, second := r.Nodes()[0], r.Nodes()[1]
	if !strings.HasSuffix(r.URL(), r.Sentinels()[2].Addr()+"/main") {
		t.Errorf("URL = %s", r.URL())
	}
	do(t, first, "SET", "key", "kept")
	must(t, r.AwaitReplicas(t.Context()))
	must(t, first.Kill())
	begun = time.Now()
	primary, err := r.AwaitPrimary(t.Context())
	must(t, err)
	t.Logf("the replica took over in %v", time.Since(begun))
	if primary != second {
		t.Errorf("the new primary is %s", primary.Addr())
	}
	wantReply(t, second, "kept", "GET", "key")
	must(t, first.Restart())
	begun = time.Now()
	must(t, r.AwaitReady(t.Context()))
	t.Logf("one follows the other after %v", time.Since(begun))
	replica := first
	if primary, err = r.Primary(t.Context()); primary == first { // a busy machine has made the sentinels change their mind
		replica = second
	}
	must(t, err)
	var refused RedisError
	if _, err := replica.Do(t.Context(), "SET", "key", "x"); !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "READONLY") {
		t.Errorf("err = %v, want READONLY", err)
	}
	begun = time.Now()
	must(t, r.FailOver(t.Context()))
	t.Logf("back in %v", time.Since(begun))
	wantReply(t, replica, "kept", "GET", "key")
}
