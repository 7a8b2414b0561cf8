package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/nightly"
	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/store/storetest"
)

// openFront opens a front that is closed with the test, and waits until it knows the time.
func openFront(t testing.TB, url, prefix string, options ...redis.Option) *redis.Front {
	t.Helper()
	f, err := redis.OpenFront(t.Context(), url, append([]redis.Option{redis.WithPrefix(prefix), patient}, options...)...)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	awaitFront(t, f)
	return f
}

// awaitFront waits until a front is connected and knows the time.
func awaitFront(t testing.TB, f *redis.Front) {
	t.Helper()
	await.Success(t, "the front answers and knows the time", func() error {
		if _, err := f.Get(t.Context(), store.ID{Key: "probe"}); err != nil {
			return err
		}
		if f.Now().IsZero() {
			return errNotYet
		}
		return nil
	})
}

func TestFront(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	storetest.RunFront(t, func(t testing.TB) storetest.FrontInstance {
		return storetest.FrontInstance{Front: openFront(t, server.URL(), server.Prefix(t))}
	})
}

var errNotYet = errors.New("not yet")

// TestFrontClock: a front's estimate of the server's clock is slow, by little.
func TestFrontClock(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	f := openFront(t, server.URL(), server.Prefix(t))
	await.That(t, "the front's clock is behind the server's by little", func() bool {
		now := f.Now()
		reply, err := server.Do(t.Context(), "TIME")
		must(t, err)
		parts := reply.([]any)
		seconds, err := strconv.ParseInt(parts[0].(string), 10, 64)
		must(t, err)
		micros, err := strconv.ParseInt(parts[1].(string), 10, 64)
		must(t, err)
		at := time.Unix(seconds, micros*1000)
		behind := at.Sub(now)
		if behind < 0 {
			t.Errorf("the front's clock shows %s, and then the server's %s", now, at)
		}
		return behind < 5*time.Second
	})
}

// TestFrontOnSeveralServers: a front works on Sentinel and on a cluster.
func TestFrontOnSeveralServers(t *testing.T) {
	t.Parallel()
	nightly.Only(t, "it starts sentinels; TestFront and TestFrontIsSpread run on one server and on a cluster")
	cluster, sentinel := servers.SharedRedisCluster(t), newSentinel(t)
	for name, url := range map[string]string{"cluster": cluster.URL(), "sentinel": sentinel.URL()} {
		t.Run(name, func(t *testing.T) {
			storetest.RunFront(t, func(t testing.TB) storetest.FrontInstance {
				return storetest.FrontInstance{Front: openFront(t, url, cluster.Name(t))}
			})
		})
	}
}

// TestFrontStartsWithoutServer: a program starts while its front is away, and uses it when it is back.
func TestFrontStartsWithoutServer(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	must(t, server.Kill())
	f, err := redis.OpenFront(t.Context(), server.URL())
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	if _, err := f.Get(t.Context(), store.ID{Key: "key"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a look-up without a server: %v, want ErrUnavailable", err)
	}
	if !f.Now().IsZero() {
		t.Error("a front without a server knows its time")
	}
	must(t, server.Restart())
	awaitFront(t, f)
}

// TestFrontIsSpread: clients who put a hash tag into their keys do not choose the node.
func TestFrontIsSpread(t *testing.T) {
	t.Parallel()
	cluster := servers.SharedRedisCluster(t)
	name := cluster.Name(t)
	f := openFront(t, cluster.URL(), name)
	for i := range 60 {
		id := store.ID{Scope: "{tag}", Key: fmt.Sprint("{tag}", i)}
		must(t, f.Add(t.Context(), id, []byte("value"), f.Now().Add(time.Hour)))
	}
	busy := 0
	for _, node := range cluster.Nodes() {
		info, err := node.Info(t.Context())
		must(t, err)
		keys, err := node.Do(t.Context(), "KEYS", name+"*")
		must(t, err)
		if n := len(keys.([]any)); info["role"] == "master" && n > 0 {
			busy++
		}
	}
	if busy != 3 {
		t.Errorf("60 keys with one tag are on %d nodes, want all 3", busy)
	}
}

// TestFrontURL: a URL that is wrong is an error, which does not repeat it.
func TestFrontURL(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"", "http://secret@host", "redis://:secret@host:1,host:2", "redis://:secret@host?nothing=1"} {
		if _, err := redis.OpenFront(t.Context(), wrong); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestFrontAsksForLittle: a user with few permissions can use a front, and what the server has is answered while it takes no
// writes.
func TestFrontAsksForLittle(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	_, err := server.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~onceward:front:*", "+@read", "+@write",
		"+@connection", "+time", "+eval", "+evalsha")
	must(t, err)
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User = url.UserPassword("app", "secret")
	f := openFront(t, u.String(), "onceward")
	ids := make([]store.ID, 40)
	for i := range ids {
		ids[i] = store.ID{Scope: "alice", Key: fmt.Sprint(i)}
		must(t, f.Add(t.Context(), ids[i], []byte(ids[i].Key), f.Now().Add(time.Hour)))
	}
	must(t, f.Invalidate(t.Context(), ids[0], time.Minute))
	set(t, server, "min-replicas-to-write", "1")
	err = f.Add(t.Context(), store.ID{Key: "new"}, []byte("value"), f.Now().Add(time.Hour))
	wantUnavailable(t, err, "a server without replicas")
	var calls sync.WaitGroup
	for i, id := range ids {
		calls.Go(func() {
			value, err := f.Get(t.Context(), id)
			if want := id.Key; err != nil || i > 0 && string(value) != want || i == 0 && len(value) > 0 {
				t.Errorf("%s is %q, %v", id.Key, value, err)
			}
		})
	}
	calls.Wait()
}

// TestFrontWithoutTombstones: a server that would refuse them is not used, and the reason is returned.
func TestFrontWithoutTombstones(t *testing.T) {
	t.Parallel()
	server := servers.NewRedis(t)
	_, err := server.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~onceward:front:*", "+@read", "+@write",
		"+@connection", "+time")
	must(t, err)
	u, err := url.Parse(server.URL())
	must(t, err)
	u.User = url.UserPassword("app", "secret")
	f, err := redis.OpenFront(t.Context(), u.String())
	must(t, err)
	defer f.Close()
	_, err = f.Get(t.Context(), store.ID{Scope: "alice", Key: "key"})
	if wantUnavailable(t, err, "a front without scripts"); err != nil && !strings.Contains(err.Error(), "+evalsha") {
		t.Errorf("got %v, want what to grant", err)
	}
}

// TestFrontIsClosed: a front whose server does not answer is closed in time, and calls in progress end.
func TestFrontIsClosed(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	proxy := servers.NewRedisProxy(t, server.URL())
	f := openFront(t, proxy.URL(), server.Prefix(t), usual)
	defer proxy.HoldReply(func(command string) bool { return strings.Contains(command, "under way") })()
	got := make(chan error, 1)
	go func() {
		_, err := f.Get(t.Context(), store.ID{Key: "under way"})
		got <- err
	}()
	must(t, proxy.AwaitSprung(t.Context(), 1))
	await.Return(t, "a front is closed, while its server does not reply", func() {
		must(t, f.Close())
		wantUnavailable(t, <-got, "a call under way")
	})
}

// TestFrontNodeIsSilent: while a node of a cluster accepts connections and does not answer, each call ends with its
// context.
func TestFrontNodeIsSilent(t *testing.T) {
	t.Parallel()
	nightly.Only(t, ownCluster)
	cluster := servers.NewProxiedRedisCluster(t, calm)
	f := openFront(t, cluster.URL(), "front", usual)
	silent := cluster.Proxies()[0]
	for range 100 { // the nodes' and the front's
		defer silent.HoldReply(func(command string) bool { return strings.HasPrefix(command, "HELLO") })()
	}
	silent.DropAll()
	tried, failed := 0, 0
	await.That(t, "calls have met the node that is silent", func() bool {
		id := store.ID{Key: fmt.Sprint(tried)}
		var err error
		await.Return(t, "a call ends with its context", func() {
			err = tryFor(t, 50*time.Millisecond, func(ctx context.Context) error {
				_, err := f.Get(ctx, id)
				return errors.Join(err, f.Invalidate(ctx, id, time.Minute))
			})
		})
		tried++
		if err != nil {
			wantUnavailable(t, err, "a node that is silent")
			failed++
		}
		return tried >= 30 && failed >= 10
	})
}
